"""Numbers of a table with what they measure: they sort as numbers, and read as sentences do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens.model import fmt
from tracelens_dashboard.figures.axes import BYTES, TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracelens_dashboard.figures.axes import Units


@dataclass(frozen=True)
class Measure:
    """How a kind of number is written, and in which units a column of it may be."""

    write: Callable[[float], str]
    units: Units


TIME: Final = Measure(fmt.duration, TIMES)
SIZE: Final = Measure(fmt.size, BYTES)
BANDWIDTH: Final = Measure(
    fmt.bandwidth, ((1.0, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s"), (1e-9, "B/s"))
)
SHARE: Final = Measure(fmt.percent, ((0.01, "%"),))
CHANGE: Final = Measure(lambda share: f"{100 * share:+.1f} %", ((0.01, "%"),))


class Quantity(float):
    """A number that knows its measure: a number to whoever counts, a text to whoever writes it."""

    measure: Measure

    @classmethod
    def of(cls, value: float, measure: Measure) -> Quantity:
        """Return a number of a measure."""
        made = cls(value)
        made.measure = measure
        return made

    def __str__(self) -> str:
        return self.measure.write(float(self))

    __repr__ = __str__


def time(ns: float | None) -> Quantity | None:
    """Return a duration in ns; what was not measured stays None."""
    return None if ns is None else Quantity.of(ns, TIME)


def size(nbytes: float | None) -> Quantity | None:
    """Return a number of bytes; what was not measured stays None."""
    return None if nbytes is None else Quantity.of(nbytes, SIZE)


def bandwidth(bytes_per_ns: float | None) -> Quantity | None:
    """Return a bandwidth in bytes per ns; what was not measured stays None."""
    return None if bytes_per_ns is None else Quantity.of(bytes_per_ns, BANDWIDTH)


def share(value: float | None) -> Quantity | None:
    """Return a share, 0 to 1; what was not measured stays None."""
    return None if value is None else Quantity.of(value, SHARE)


def change(value: float | None) -> Quantity | None:
    """Return a relative difference; what was not measured stays None."""
    return None if value is None else Quantity.of(value, CHANGE)


def unit(column: Iterable[Quantity]) -> tuple[float, str]:
    """Choose the unit in which a column's largest number has digits before its point, and its size."""
    values = list(column)
    largest = max(map(abs, values), default=0.0)
    units = values[0].measure.units
    return next((one for one in units if largest >= one[0]), units[-1])
