#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exit status 0 if the CUDA driver that the loader finds has a GPU: only cuInit knows. A device node says nothing, as a
driver's library makes it where there is none. Says what it found."""

import ctypes
import sys


def main() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(f"no GPU: {error}")
        return 1
    status = driver.cuInit(0)
    if status == 0:
        print("the CUDA driver has a GPU")
        return 0
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    print(f"no GPU: cuInit reports {status} ({(name.value or b'unknown').decode()})")
    return 1


if __name__ == "__main__":
    sys.exit(main())
