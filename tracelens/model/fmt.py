"""Numbers and names as people read them: the only place where nanoseconds become seconds.

Inside, times are integer nanoseconds and shares fractions of 1; sentences of findings, reports and the
dashboard write them with these functions, so that one number reads the same everywhere.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS: Final = ((3.6e12, "h"), (6e10, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_RATES: Final = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
_PHASES: Final = {
    "data": "data loading",
    "update": "optimizer update",
    "checkpoint": "checkpointing",
    "gc": "garbage collection",
    "user": "other compute",
    "wait": "wait for other ranks",
    "ps_queue": "server queue",
    "transfer": "exposed communication",
    "idle": "idle (cause known)",
    "uninstrumented": "uninstrumented code",
    "outside": "outside steps",
}
MOST_LISTED: Final = 6  # entries: a list in a sentence has no more [policy]


def align_cells(rows: Sequence[Sequence[str]], sides: str = "<") -> list[str]:
    """Return a table's lines, with two blanks between columns.

    By hand, as a table of rich takes a second for a thousand rows.

    Args:
        rows: The cells, [row][column], with headings if there are any.
        sides: ``<`` or ``>`` for each column: to which side its cells go. The last one is that of all
            columns that follow, too.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [
        f"{side}{width}"
        for side, width in zip(sides.ljust(len(widths), sides[-1]), widths, strict=True)
    ]
    return [
        "  ".join(
            f"{cell:{cell_format}}" for cell, cell_format in zip(row, formats, strict=True)
        ).rstrip()
        for row in rows
    ]


def duration(ns: float) -> str:
    """Write a duration with three digits: ``162 ms``, ``2.93 ms``; nanoseconds are whole."""
    for unit_ns, unit in _UNITS[:-1]:
        if abs(ns) >= unit_ns * (1 - 0.0005):  # 999.9 us is 1.00 ms
            return f"{_three_digits(ns / unit_ns)} {unit}"
    return f"{ns:.0f} ns"


def size(nbytes: float) -> str:
    """Write a number of bytes: ``24.0 MiB``."""
    for factor, unit in _SIZES:
        if abs(nbytes) >= factor:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes:,.0f} B"


def parse_size(text: str) -> int:
    """Read a number of bytes: ``2GiB``, ``512 MiB``, ``1000000``.

    Raises:
        ValueError: it is not a size, or 0.
    """
    bytes_by_unit = {unit.lower(): unit_bytes for unit_bytes, unit in _SIZES} | {"b": 1, "": 1}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    nbytes = int(float(match[1]) * bytes_by_unit.get(match[2], 0)) if match else 0
    if not nbytes:
        raise ValueError(f"'{text}' is no number of bytes, such as 512MiB or 2GiB")
    return nbytes


def bandwidth(bytes_per_ns: float) -> str:
    """Write bytes per nanosecond as links are sold, in powers of ten: ``11.8 GB/s``."""
    bytes_per_s = bytes_per_ns * 1e9
    for unit_rate, unit in _RATES:
        if abs(bytes_per_s) >= unit_rate:
            return f"{_three_digits(bytes_per_s / unit_rate)} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def percent_number(share: float, digits: int | None = None) -> str:
    """Format a share in percent, without the sign: by default ``12`` or ``0.4``."""
    value = 100 * share
    digit_count = digits if digits is not None else 0 if abs(value) >= 9.95 else 1
    return f"{value:.{digit_count}f}"


def percent(share: float, digits: int | None = None) -> str:
    """Write a share as a percentage: ``61 %``, ``0.4 %``; in columns with the same decimals."""
    return f"{percent_number(share, digits)} %"


def saving(share: float, interval: tuple[float, float] | None = None) -> str:
    """Write a share that is saved, with its 95 % confidence interval where that is known."""
    if interval is None:
        return percent(share)
    low, high = interval
    return f"{percent(share)} (95 % CI {percent_number(low)}\N{EN DASH}{percent_number(high)})"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun: ``1 step``, ``400 steps``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listing(noun: str, names: Sequence[int | str]) -> str:
    """Name some: ``rank 3``, ``ranks 3, 5 and 7``, ``ranks 0, 1, 2 and 61 more``."""
    texts = [str(name) for name in names]
    if len(texts) == 1:
        return f"{noun} {texts[0]}"
    if len(texts) > MOST_LISTED:
        texts = [*texts[: MOST_LISTED - 1], f"{len(texts) - MOST_LISTED + 1} more"]
    return f"{noun}s {join_words(texts)}"


def join_words(names: Sequence[str]) -> str:
    """Join words: ``forward``, ``forward and backprop``, ``data loading, forward and backprop``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def steps(first: int, last: int) -> str:
    """Write a range of steps, inclusive: ``step 4``, ``steps 40`` to ``79``."""
    return f"step {first}" if first == last else f"steps {first}\N{EN DASH}{last}"


def phase(name: str) -> str:
    """Name a phase within a sentence: ``data loading``, ``backprop``."""
    return _PHASES.get(name, name)


def all_ranks(count: int) -> str:
    """Name all ranks of a job, at the beginning of a sentence."""
    return "Both ranks" if count == 2 else f"All {count} ranks"


def capital(text: str) -> str:
    """Begin a sentence."""
    return text[:1].upper() + text[1:]


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:,.{0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2}f}"


def shown_name(path: str | os.PathLike[str]) -> str:
    """Write a file's name or path as text that every page and format can hold.

    Names are bytes, to the system; those that are not UTF-8 are written as numbers.
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")
