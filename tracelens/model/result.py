"""What analyses return, and the report that gathers their findings. Contract: docs/report.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from tracelens.model.choice import describe_choice
from tracelens.model.display import to_pandas, upper_layers
from tracelens.model.fmt import count, join_words, percent

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any

    import polars as pl

    from tracelens.model.findings import Finding
    from tracelens.model.trace import Alignment, Note, Trace
    from tracelens.model.verdict import Ledger, Verdict

REPORT_FORMAT: Final = "tracelens.report/3"


class Result(Protocol):
    """What every analysis returns: a frozen value with its findings."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of this analysis, in any order."""


@runtime_checkable
class Tabled(Protocol):
    """A result with tables that a report shows; every trace has them, if empty."""

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Tables by name, each with a row count that suits a page."""


@dataclass(frozen=True)
class Share:
    """One bar of the waterfall: a cause and its share of ranks x job time."""

    cause: str
    share: float


@dataclass(frozen=True)
class DeviceShares:
    """What devices did, as shares of the job's time; they were `idle` for the rest.

    `exposed` is communication that no computation overlapped, `launching` the part of `idle` in which
    they waited until the host queued work. `host_before` says in which of its spans the host was when
    they ran out of work: shares of `launching` by name, the largest first; the name is empty where no
    span covers the code.
    """

    compute: float
    exposed: float
    copies: float
    launching: float = 0.0
    host_before: Mapping[str, float] = field(default_factory=dict)

    @property
    def idle(self) -> float:
        """The share in which devices did nothing."""
        return 1.0 - self.compute - self.exposed - self.copies

    @property
    def description(self) -> str:
        """The four shares in words."""
        return (
            f"computing {percent(self.compute)}, exposed communication {percent(self.exposed)}, "
            f"copies {percent(self.copies)}, idle {percent(self.idle)}"
        )

    @property
    def host_text(self) -> str:
        """Where the host was when devices ran out of work; empty where that is not known."""
        listed = [
            f"{name or 'code that no span covers'} ({percent(share)})"
            for name, share in self.host_before.items()
        ]
        return f"they ran out of work while the host was in {join_words(listed)}" if listed else ""


@dataclass(frozen=True)
class Efficiency:
    """Where the time went; `achieved` + the shares of `waterfall` = 1 exactly (to rounding).

    `achieved` is POP parallel efficiency: useful computation / (ranks x job time). `pop` holds its
    factors, empty where they are not known. `job_ns` is the job's length on the common clock. The share
    `uninstrumented` is code that no span covers: a bar of `waterfall`, or a part of `achieved` where it
    counts as useful. `at_most`: the run does not hold waits, so part of `achieved` may be some.
    `devices` is what devices did, which decides what is useful of the time of ranks that have one.
    """

    achieved: float
    waterfall: tuple[Share, ...]
    pop: Mapping[str, float]
    job_ns: int
    uninstrumented: float
    at_most: bool = False
    devices: DeviceShares | None = None

    @property
    def useful_uninstrumented(self) -> float:
        """What of `achieved` is code that no span covers."""
        is_lost = any(bar.cause == "uninstrumented" for bar in self.waterfall)
        return 0.0 if is_lost else self.uninstrumented


@dataclass(frozen=True)
class LifeShares:
    """The uses of the wall time of a job, from its launch to its last exit (docs/life.md).

    `uses` are shares of `wall_ns` by use, the largest first, which add up to 1; `goodput` is that of
    steps that were kept. `is_kept_known` is False if it is not known which steps were done again.
    `failure` is the cause of the last failure of an attempt, null if none failed. `worlds` are the
    numbers of ranks of the attempts; 0 if no rank was seen.
    """

    wall_ns: int
    attempts: int
    goodput: float
    uses: Mapping[str, float]
    is_kept_known: bool
    failure: str | None
    worlds: tuple[int, ...] = ()


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
    def selection_text(self) -> str:
        """What was selected, in words; nothing for the whole run."""
        return describe_choice(self.selected) if self.selected else ""


@dataclass(frozen=True)
class Report:
    """Findings (those that limit the trace first, then by saving), their verdict, and what backs them.

    `ledger` accounts for every loss; null where no worker recorded a step. `life` is about the whole job
    with all its attempts; null where TraceLens did not record it, or a part of it is selected.
    """

    verdict: Verdict
    summary: Summary
    clock: Alignment
    efficiency: Efficiency | None
    ledger: Ledger | None
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    results: Mapping[str, Result] = field(default_factory=dict)
    life: LifeShares | None = None

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables of all results that belong into a report, by name (docs/report.md)."""
        parts = [result.tables for result in self.results.values() if isinstance(result, Tabled)]
        return {name: table for part in parts for name, table in part.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain lists, objects, numbers and texts (docs/report.md)."""
        found: dict[str, Any] = upper_layers().to_json.to_object(self)
        return found

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        text: str = upper_layers().to_markdown.render(self)
        return text

    def to_pandas(self, table: str = "findings") -> Any:
        """Return its findings, or a table of its results, as a frame of pandas.

        Raises:
            InvalidArgument: it has no such table.
            MissingExtra: pandas is not installed.
        """
        frames = upper_layers().saving.list_tables(self)
        return to_pandas(frames, table, "this report")

    def save(self, path: str | os.PathLike[str], trace: Trace | None = None) -> None:
        """Write the report; what ends the name says how.

        ``.json``, ``.md``, ``.html``, ``.txt``, ``.prom`` (Prometheus' text format); the page has
        charts if the trace is given, too.

        Raises:
            InvalidArgument: the name ends otherwise, or the file cannot be written.
            MissingExtra: charts need libraries that are not installed.
        """
        upper_layers().saving.save(self, path, trace)

    def save_tables(self, folder: str | os.PathLike[str]) -> list[str]:
        """Write its findings and all tables of its results as CSV, a file each; return their names.

        Raises:
            InvalidArgument: the folder cannot be written to.
        """
        names: list[str] = upper_layers().saving.save_tables(self, folder)
        return names

    def __repr__(self) -> str:
        """Return the verdict, and how much it is about, in one line."""
        ranks, steps = self.summary.ranks_seen, self.summary.steps
        size = ", ".join((count(ranks, "rank"), count(steps, "step")))
        found = count(len(self.findings), "finding")
        return f"Report({self.verdict.state}: {self.verdict.headline!r}, {size}, {found})"

    def _repr_html_(self) -> str:
        page: str = upper_layers().to_html.write_fragment(self)
        return page
