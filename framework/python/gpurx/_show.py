# SPDX-License-Identifier: Apache-2.0
"""Tensors as people see them in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ._native import Tensor

_ROWS_SHOWN = 100


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            break
    return f"{value:.1f} {unit}"


def table(title: str, tensors: Mapping[str, Tensor]) -> str:
    """HTML, whatever the names are. Of many tensors the first."""
    rows = ["<th>name</th><th>dtype</th><th>shape</th><th>size</th><th>device</th>"]
    for name, one in list(tensors.items())[:_ROWS_SHOWN]:
        cells = (name, one.dtype, str(one.shape), size_text(one.nbytes), one.device)
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    more = len(tensors) - _ROWS_SHOWN
    rest = f"<p>… and {more} more</p>" if more > 0 else ""
    return f"<p>{escape(title)}</p><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{rest}"
