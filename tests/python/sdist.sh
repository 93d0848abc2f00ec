#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The source distribution: made, unpacked where the repository is not, built and installed from there by pip, offline, into
# a fresh environment, and used there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh
. tests/python/layer.sh

most_mebibytes=2

# What a user does first, from elsewhere.
use() {
    (cd / && "$1/bin/python" -I - <<'PYTHON')
import threading

import numpy as np

import gpurx

with gpurx.TensorStream("127.0.0.1:0", transport="copy", batch_size=8) as stream:
    host, port = stream.addresses()[0]

    def send() -> None:
        with gpurx.TensorSender(f"{host}:{port}") as sender:
            sender.send(x=np.arange(16))

    thread = threading.Thread(target=send)
    thread.start()
    assert [batch.x.numpy().tolist() for batch in stream] == [list(range(8)), list(range(8, 16))]
    thread.join()
print(f"gpurx {gpurx.__version__} from the source distribution works")
PYTHON
}

main() {
    local environment work packed cuda=AUTO
    [[ -z $(cmake/cuda-toolkit.sh --path) ]] || cuda=ON
    environment=$(tests/python/environment.sh)
    work=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    packed=$work/$("$environment/bin/python" -c 'import sys, scikit_build_core.build as b; print(b.build_sdist(sys.argv[1]))' \
        "$work" 2>"$work/log" | tail -n 1) || die "$(<"$work/log")"
    (($(stat -c %s "$packed") <= most_mebibytes << 20)) || die "$packed has more than $most_mebibytes MiB"
    layer "$environment" "$work/venv"
    PATH=$environment/bin:$PATH "$environment/bin/python" -m pip --python "$work/venv/bin/python" install --quiet --no-input \
        --disable-pip-version-check --no-index --no-deps --no-build-isolation -Ccmake.define.GPURX_WERROR=ON \
        -Ccmake.define.GPURX_CUDA="$cuda" "$packed"
    use "$work/venv"
}

main "$@"
