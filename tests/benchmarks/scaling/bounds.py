"""What is promised of large runs, and whether it holds: a bound, the values of all rounds, a verdict.

The median of the rounds counts; the least and the most stand beside it. What this version cannot do, or
could not be measured here, has no values and is never taken as held.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.published import table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bound", "Outcome", "Section", "machine", "write_spread"]

HELD, MISSED, ABSENT, UNJUDGED = "yes", "**no**", "**not measured**", "not judged"
_SO: Final = "yes or no"
_LIBRARIES: Final = ("pyarrow", "polars", "numpy")
_HEAD: Final = ("what", "bound", "median (least to most)", "held")


@dataclass(frozen=True)
class Bound:
    """A promise about a number: at most `limit`, or at least; `unit` is how it is read.

    Of what is so or not so the values are 1 and 0: see `yes`.
    """

    what: str
    limit: float
    unit: str
    at_least: bool = False
    note: str = ""

    @classmethod
    def yes(cls, what: str) -> Bound:
        """Return the promise that something is so."""
        return cls(what, 1.0, _SO, at_least=True)

    def __str__(self) -> str:
        if self.unit == _SO:
            return "yes"
        note = f" ({self.note})" if self.note else ""
        return f"{'>=' if self.at_least else '<='} {_number(self.limit)} {self.unit}{note}".strip()

    def holds(self, value: float) -> bool:
        """Return whether a value keeps the promise."""
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Outcome:
    """A bound with what was measured, a value a round; `why` there is none, or how it was taken.

    `judged` is false for runs that are smaller than those that the bound is about.
    """

    bound: Bound
    values: Sequence[float]
    why: str = ""
    judged: bool = True

    @property
    def verdict(self) -> str:
        """Whether it holds, as the page shows it."""
        if not self.values:
            return ABSENT
        if not self.judged:
            return UNJUDGED
        return HELD if self.bound.holds(median(self.values)) else MISSED

    @property
    def missed(self) -> bool:
        """Whether the promise is broken, or was not shown to hold."""
        return self.verdict in {MISSED, ABSENT}

    @property
    def row(self) -> list[str]:
        """The row of the table of bounds."""
        values_text = write_spread(self.values, self.bound.unit) if self.values else ""
        return [
            self.bound.what,
            str(self.bound),
            "; ".join(part for part in (values_text, self.why) if part),
            self.verdict,
        ]


@dataclass
class Section:
    """What one arm found: bounds, and tables or sentences of what is behind them."""

    title: str
    outcomes: list[Outcome] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def judge(self, bound: Bound, values: Sequence[float], *, judged: bool, why: str = "") -> None:
        """Add a bound and what was measured of it."""
        self.outcomes.append(Outcome(bound, tuple(values), why, judged))

    @property
    def missed(self) -> list[str]:
        """The bounds that do not hold, in words."""
        return [": ".join(o.row[:3]) for o in self.outcomes if o.missed]

    def markdown(self) -> str:
        """Return the section of a page."""
        bounds = table(self.title, _HEAD, (outcome.row for outcome in self.outcomes))
        return "\n\n".join([bounds, *self.texts])


def write_spread(values: Sequence[float], unit: str = "") -> str:
    """Return median, least and most in words."""
    if unit == _SO:
        return HELD if min(values) else "no"
    middle = f"{_number(median(values))} {unit}".strip()
    if len(values) == 1:
        return middle
    return f"{middle} ({_number(min(values))} to {_number(max(values))})"


def machine() -> str:
    """Say what this was measured on; nothing of whose machine it is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return (
        f"{os.cpu_count()} cores ({model or platform.machine()}), {memory:.0f} GiB of memory, Python "
        f"{platform.python_version()}, {libraries}; load {os.getloadavg()[0]:.1f} before"
    )


def _number(value: float) -> str:
    """Show three digits of what is small, and none behind the point of what is large."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
