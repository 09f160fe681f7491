"""Numbers of a table with what they measure: they sort as numbers, and read as sentences do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.figures.axes import BYTES, TIMES, Units

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.figures.drawing import Rows


@dataclass(frozen=True)
class Measure:
    """How a kind of number is written, and in which units a column of it may be."""

    format_value: Callable[[float], str]
    unit_choices: Units

    def __call__(self, value: float | None) -> Quantity | None:
        """Return a number of this measure; what was not measured stays None."""
        if value is None:
            return None
        number = Quantity(value)
        number.measure = self
        return number


class Quantity(float):
    """A float with a measure: sorts as a number, prints with its unit."""

    measure: Measure

    def __str__(self) -> str:
        return self.measure.format_value(float(self))

    __repr__ = __str__


time: Final = Measure(fmt.duration, TIMES)  # ns
size: Final = Measure(fmt.size, BYTES)  # bytes
bandwidth: Final = Measure(
    fmt.bandwidth, ((1.0, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s"), (1e-9, "B/s"))
)  # bytes per ns
share: Final = Measure(fmt.percent, ((0.01, "%"),))  # 0 to 1
change: Final = Measure(lambda share: f"{100 * share:+.1f} %", ((0.01, "%"),))  # relative

# By heading: the column of a data frame, and how its values are shown.
Columns = Mapping[str, str | tuple[str, Callable[[Any], Any]]]


def rounded(digits: int, *, factor: float = 1.0) -> Callable[[float | None], float | None]:
    """Show a number in units of `factor`, with `digits` digits."""
    return lambda value: None if value is None else round(value / factor, digits)


def milliseconds(digits: int = 3) -> Callable[[float | None], float | None]:
    """Show nanoseconds in milliseconds."""
    return rounded(digits, factor=1e6)


def tabulate(frame: pl.DataFrame, columns: Columns) -> Rows:
    """List the rows of `frame` as cells by heading; `columns` has each heading's column and format."""
    table_rows = []
    for row in frame.iter_rows(named=True):
        cells = {}
        for heading, column in columns.items():
            column_name, show_value = (column, None) if isinstance(column, str) else column
            cells[heading] = show_value(row[column_name]) if show_value else row[column_name]
        table_rows.append(cells)
    return table_rows


def name(value: str | None) -> str:
    """Show a name from a trace."""
    return text.escape_name(value)


def choose_unit(column: Iterable[Quantity]) -> tuple[float, str]:
    """Choose the (size, name) of a unit in which a column's largest number is at least 1."""
    values = list(column)
    largest_value = max(map(abs, values), default=0.0)
    units = values[0].measure.unit_choices
    return next(((size, name) for size, name in units if largest_value >= size), units[-1])
