"""Lengths of time as people write them: ``30s``, ``2m``, ``1.5h``; without a unit, seconds."""

from __future__ import annotations

import re
from typing import Final

from tracelens.errors import InvalidArgument

__all__ = ["LENGTH_OF_TIME", "LONGEST_NS", "parse_duration", "to_ns"]

LONGEST_NS: Final = 10**18  # ns: a longer time is refused; 32 years [definition]
_UNITS: Final = {"ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}  # ns: of each unit [definition]
# A pattern with two groups: the number, and the unit if there is one.
LENGTH_OF_TIME: Final = rf"(\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})?"
_DURATION: Final = re.compile(LENGTH_OF_TIME)


def parse_duration(text: str, option: str) -> int:
    """Read ``30s``, ``2m`` or ``90`` (seconds) as ns.

    Raises:
        InvalidArgument: it is no time, or longer than 32 years.
    """
    match = _DURATION.fullmatch(text.strip())
    duration_ns = to_ns(match[1], match[2]) if match else -1
    if not 0 <= duration_ns <= LONGEST_NS:
        raise InvalidArgument(f"{option} {text}: expected a time such as 30s, 2m or 1h.")
    return duration_ns


def to_ns(number: str, unit: str | None) -> int:
    """Return a length of time, written as a number and maybe a unit, in ns."""
    return round(float(number) * _UNITS[unit or "s"])
