# SPDX-License-Identifier: Apache-2.0
"""DLIO 2.0 imports tensorflow, half a gigabyte, also where it is not used."""
