"""The library that draws charts: plotly.js with the trace types that figures use, and no others.

`dashboard/charts-library` says what is in it, and makes it. All of plotly.js, as plotly.py brings it,
is four times as large: a browser would fetch, read and compile that before the first chart.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "assets" / "early" / "plotly.min.js"
VERSION: Final = "4.1.1"  # a test holds it to the file's


@cache
def source() -> str:
    """Return the script; it defines `Plotly`."""
    return FILE.read_text(encoding="utf-8")
