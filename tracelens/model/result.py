"""What analyses return, and the report that gathers their findings. Contract: docs/report.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from tracelens.model.choice import described

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from tracelens.model.findings import Finding
    from tracelens.model.trace import Alignment, Note
    from tracelens.model.verdict import Ledger, Verdict

REPORT_FORMAT: Final = "tracelens.report/2"


class Result(Protocol):
    """What every analysis returns: a frozen value with its findings."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of this analysis, in any order."""


@runtime_checkable
class Tabled(Protocol):
    """A result with tables that a report shows; they are there, if empty, for every trace."""

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Tables by name, each with a row count that suits a page."""


@dataclass(frozen=True)
class Share:
    """One bar of the waterfall: a cause and its share of ranks x job time."""

    cause: str
    share: float


@dataclass(frozen=True)
class Efficiency:
    """Where the time went; `achieved` + the shares of `waterfall` = 1 exactly (to rounding).

    `achieved` is POP parallel efficiency: useful computation / (ranks x job time). `pop` holds its
    factors. `job_ns` is the job's length on the common clock. Of `achieved`, the share `uninstrumented`
    (of all, too) is code that no span covers.
    """

    achieved: float
    waterfall: tuple[Share, ...]
    pop: Mapping[str, float]
    job_ns: int
    uninstrumented: float


@dataclass(frozen=True)
class Summary:
    """What the trace holds.

    `selected` says what of the run was asked for (ranks, steps, time, as they are written on the command
    line; null for all); null where nothing was left out.
    """

    ranks_expected: int
    ranks_seen: int
    shards: int
    steps: int
    spans: int
    dropped: Mapping[str, int]
    selected: Mapping[str, str | None] | None = None

    @property
    def part(self) -> str:
        """What was selected, in words; nothing for the whole run."""
        return described(self.selected) if self.selected else ""


@dataclass(frozen=True)
class Report:
    """Findings (those that limit the trace first, then by saving), their verdict, and what backs them.

    `ledger` accounts for every loss; null where no worker recorded a step.
    """

    verdict: Verdict
    summary: Summary
    clock: Alignment
    efficiency: Efficiency | None
    ledger: Ledger | None
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    results: Mapping[str, Result] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables of all results that belong into a report, by name (docs/report.md)."""
        parts = [result.tables for result in self.results.values() if isinstance(result, Tabled)]
        return {name: table for part in parts for name, table in part.items()}
