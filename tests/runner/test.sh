#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The runner's own tests.
cd "$(dirname "${BASH_SOURCE[0]}")" && exec python3 -m unittest discover --buffer --pattern '*_test.py'
