"""A reader and an analysis for TraceLens, as a distribution of its own (docs/plugins.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracelens.errors import NotATrace
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.spans import Origin, build

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracelens.accounting.phases import Phases
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

MAGIC = "toy 1"
COLUMNS = ("rank", "start_ns", "end_ns", "kind", "step")


class ToyReader:
    """Reads files that begin with a line `toy 1`, then one span a line."""

    name = "toy trace"

    def sniff(self, path: Path) -> bool:
        """Look at the first bytes only."""
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC.encode()

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Make a frame with a row a span, in the words of docs/tables.md; the rest is done for it."""
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        if not all(len(row) == len(COLUMNS) for row in rows):
            raise NotATrace(f"'{path}' has lines that are no spans: expected {' '.join(COLUMNS)}.")
        table = pl.DataFrame(rows, schema=dict.fromkeys(COLUMNS, pl.String), orient="row")
        numbers = {"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "step": pl.Int32}
        table = table.with_columns(
            *(pl.col(name).cast(kind) for name, kind in numbers.items()), name=pl.col("kind")
        )
        return build(table, Origin(name=f"'{path}'", file=path.name)).with_(path=path)


@dataclass(frozen=True)
class LongestSteps:
    """A result: a frozen dataclass with `findings`, and `tables` if it has any."""

    longest: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """What is saved with the report's tables."""
        return {"longest_steps": self.longest}


def longest_steps(trace: Trace, phases: Phases) -> LongestSteps:
    """Find each rank's longest step."""
    lasted = trace.steps.select("rank", "step", ns=pl.col("end_ns") - pl.col("start_ns"))
    longest = lasted.sort("ns", descending=True).unique("rank", keep="first", maintain_order=True)
    return LongestSteps(longest.sort("rank"))
