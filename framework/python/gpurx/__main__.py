# SPDX-License-Identifier: Apache-2.0
"""Command line of the package: `python -m gpurx --version` and `python -m gpurx explain [--interface IF] [--memory PLACE]`."""

from __future__ import annotations

import argparse
import sys

from . import Error, Session, __version__


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpurx", description="Receive TCP straight into GPU memory, as tensors.")
    parser.add_argument("--version", action="version", version=f"gpurx {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    explain = commands.add_parser("explain", help="print the transport of a session here, and the reason against a better one")
    explain.add_argument("--interface", default="", help="name of the NIC")
    explain.add_argument("--memory", default="host", help="'host', or a GPU, such as 'gpu:0'")
    wanted = parser.parse_args()
    try:
        with Session(wanted.memory, interface=wanted.interface) as session:
            print(session.explain())
    except (Error, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
