"""What analyses return: findings, and the report that gathers them. Contract: docs/report.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from tracelens.model.trace import Alignment, Note

REPORT_FORMAT: Final = "tracelens.report/1"

FindingKind = Literal[
    "straggler",
    "slow_host",
    "slow_all",
    "slow_link",
    "congestion",
    "load_imbalance",
    "ps_hot_shard",
    "ps_cpu_bound",
    "ps_network_bound",
    "ps_incast",
    "small_messages",
    "exposed_communication",
    "update_gap",
    "data_stall",
    "checkpoint_stall",
    "gc_stall",
    "clock_jump",
    "desync",
    "hang",
    "missing_rank",
    "truncated_trace",
    "dropped_events",
    "world_change",
    "stale_worker",
    "insufficient_evidence",
]
Pattern = Literal["persistent", "transient", "drifting", "sparse", "rotating"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that costs time, or limits what the trace can tell.

    `cost` is the others' summed waiting / (ranks x job time); `saving` the share of job time that
    mending it would save (counterfactual), with `interval` its 95 % interval; null = not measurable.
    `steps` is (first, last), inclusive. `evidence` holds the numbers behind the sentence.
    """

    kind: FindingKind
    category: Literal["fault", "opportunity"]
    sentence: str
    saving: float | None = None
    interval: tuple[float, float] | None = None
    cost: float | None = None
    slowdown: float | None = None
    confidence: float | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    phase: str | None = None
    pattern: Pattern | None = None
    steps: tuple[int, int] | None = None
    tensor: str | None = None
    function: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


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
    factors. `job_ns` is the job's length on the common clock.
    """

    achieved: float
    waterfall: tuple[Share, ...]
    pop: Mapping[str, float]
    job_ns: int


@dataclass(frozen=True)
class Summary:
    """What the trace holds."""

    ranks_expected: int
    ranks_seen: int
    shards: int
    steps: int
    spans: int
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class Report:
    """The verdict: findings (those that limit the trace first, then by saving) and what backs them."""

    summary: Summary
    clock: Alignment
    efficiency: Efficiency | None
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    results: Mapping[str, Result] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables of all results that belong into a report, by name (docs/report.md)."""
        parts = [result.tables for result in self.results.values() if isinstance(result, Tabled)]
        return {name: table for part in parts for name, table in part.items()}
