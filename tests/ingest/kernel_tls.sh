#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests https in the lab, where a kernel of Debian decrypts: its module `tls` is loaded when it is asked for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tests/build.sh unit_ingest ingest_tests
./run lab --modules --no-nic --timeout 600 -- env GPURX_TEST_KERNEL_TLS=1 sh -c \
    'build/test/tests/unit_ingest "tls_session: *" && build/test/tests/ingest_tests "https: *"'
