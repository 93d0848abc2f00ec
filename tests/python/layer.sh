# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For sourcing.

# The CPythons that the wheel is for.
# shellcheck disable=SC2034
cpythons=(3.10 3.11 3.12 3.13 3.14 3.15)

# layer UNDER OVER: makes OVER a virtual environment of its own, that sees what UNDER has.
layer() {
    local under=$1 over=$2
    [[ -x $over/bin/python && $(<"$over/under") == "$under" ]] 2>/dev/null || {
        rm -rf "$over"
        "$under/bin/python" -m venv --without-pip "$over"
        printf '%s\n' "$under" >"$over/under"
    }
    "$under/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$("$over/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/environment.pth"
}

# lend_torch OVER: Debian's torch, where it is one for that Python. Those of PyPI have gigabytes.
lend_torch() {
    local torch=/usr/lib/python3/dist-packages/torch into suffix
    into=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    suffix=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    rm -f "$into/torch"
    [[ ! -e $torch/_C$suffix ]] || ln -s "$torch" "$into/torch"
}

# lend FROM OVER NAME...: packages of an environment of the same Python, for another that has none.
lend() {
    local from=$1 over=$2 purelib='import sysconfig; print(sysconfig.get_path("purelib"))' name
    from=$("$from/bin/python" -c "$purelib")
    over=$("$over/bin/python" -c "$purelib")
    shift 2
    for name; do
        ln -sfn "$from/$name" "$over/$name"
    done
}

# install_gpurx BUILD UNDER OVER CMAKE-OPTION...: this tree's package into OVER, which lies on UNDER and has its pip.
# BUILD is the environment that has what builds it. Joined by && for those who call it where errexit is off.
install_gpurx() {
    local build=$1 under=$2 over=$3 wheels=$3.wheels
    shift 3
    rm -rf "$wheels"
    PATH=$build/bin:$PATH "$build/bin/python" -m pip wheel --quiet --no-input --disable-pip-version-check --no-index \
        --no-deps --no-build-isolation "${@/#/-Ccmake.define.}" -w "$wheels" . &&
        "$under/bin/python" -m pip --python "$over/bin/python" install --quiet --no-input --disable-pip-version-check \
            --no-index --no-deps --force-reinstall "$wheels"/gpurx-*.whl
}
