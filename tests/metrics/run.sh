#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prometheus itself reads what gpurx and gpurxd write:  run.sh [UNITTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

programs=$(tests/metrics/prometheus.sh)
tests/build.sh gpurxd metrics_probe
python3 tests/metrics/prometheus_test.py "$programs" build/test "$@"
