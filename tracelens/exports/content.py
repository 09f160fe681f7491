"""What a conversion writes: some ranks, steps and times of a run, process by process.

Formats ask for one process at a time, so that no more than that is held, however large the run is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.align.selection import check_ranks, cut_to_choice
from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.exports.anonymous import Replacements, iterate_texts
from tracelens.exports.down_sampling import sum_up
from tracelens.exports.output import size_of
from tracelens.model.choice import EVERYTHING
from tracelens.model.fmt import shown_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tracelens.exports.down_sampling import Flagged, ProcessEvents
    from tracelens.model.choice import Choice
    from tracelens.model.trace import Trace

ANONYMOUS: Final = "run"
_ORDER: Final = ("rank", "incarnation", "pid", "process")


@dataclass(frozen=True)
class Saved:
    """What was written to disk; `summed_up_count` events stand as `sum_count` spans."""

    event_count: int
    size_bytes: int
    summed_up_count: int = 0
    sum_count: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Content:
    """A part of a run; all but `flagged_steps` is summed up, `replacements` replaces names, if any.

    The events and samples of `trace` are those of the choice, its tables those of the run. `processes`
    are as in `Trace.processes`, workers first and by rank, with names replaced. `source_paths` are of
    the runs, for what only their files know. `sum_counts_by_process` has of each process read so far
    how many recorded events sums replace, and how many sums.
    """

    trace: Trace
    name: str
    choice: Choice = EVERYTHING
    flagged_steps: Flagged | None = None
    replacements: Replacements | None = None
    source_paths: tuple[Path, ...] = ()
    sum_counts_by_process: dict[int, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def processes(self) -> pl.DataFrame:
        """The chosen processes, one row each; those on the common clock have its host's domain."""
        table = self.trace.processes
        left_out_ranks = [rank for rank in table["rank"].unique() if not self.choice.has_rank(rank)]
        table = table.filter((pl.col("role") == "ps") | ~pl.col("rank").is_in(left_out_ranks))
        hosts = self.trace.alignment.hosts
        # Hosts whose clock is tied to the common one, which is that of the first.
        tied_domains = [host.clock_domain for host in hosts if host.uncertainty_ns is not None]
        common_by_domain = dict.fromkeys(tied_domains, next(iter(tied_domains), ""))
        table = table.with_columns(pl.col("clock_domain").replace(common_by_domain))
        table = table.sort(pl.col("role") == "ps", *_ORDER)
        if self.replacements is None:
            return table
        return table.with_columns(
            _rename_column(table["host"], self.replacements.replace_host),
            _rename_column(table["job"], self.replacements.replace_job),
            _rename_column(table["clock_domain"], self.replacements.replace_clock),
        )

    def read_events(self, process: int) -> pl.DataFrame:
        """Return the chosen events of one process, and add to `sum_counts_by_process`."""
        events = _read_events(self.trace, process)
        if self.flagged_steps is not None:
            events, recorded_count, sum_count = self._sum_up(process, events)
            self.sum_counts_by_process[process] = recorded_count, sum_count
        return events if self.replacements is None else self.replacements.replace_events(events)

    def read_samples(self, process: int) -> pl.DataFrame:
        """Return the chosen samples of one process's stacks."""
        samples = self.trace.samples.filter(pl.col("process") == process)
        return samples if self.replacements is None else self.replacements.replace_samples(samples)

    def redact(self, text: str) -> str:
        """Return a text as it may be written."""
        return text if self.replacements is None else self.replacements.replace_text(text)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is left out or changed as asked, a sentence each."""
        notes = []
        if self.choice.description:
            notes.append(f"As asked, only {self.choice.description} of the run are here.")
        if self.flagged_steps is not None:
            notes.append(self.redact(self.flagged_steps.sentence))
        if self.replacements is not None:
            notes.append("Hosts, users, jobs and paths have numbers instead of names.")
        return tuple(notes)

    def describe_saved(self, events: int, target: Path, notes: tuple[str, ...] = ()) -> Saved:
        """Return the `events` written to a path, with the sums among them."""
        recorded = sum(recorded for recorded, _ in self.sum_counts_by_process.values())
        sums = sum(sums for _, sums in self.sum_counts_by_process.values())
        return Saved(events, size_of(target), recorded, sums, notes)

    def make_empty_error(self) -> InvalidArgument:
        """Return the error for a choice without any event."""
        subject = self.choice.description or "this run"
        return InvalidArgument(
            f"Nothing is selected: {subject} hold no event that this format has; see what there is with "
            "'tracelens info'."
        )

    def _sum_up(self, process: int, events: pl.DataFrame) -> ProcessEvents:
        """Sum up those events of one process that are not in flagged steps."""
        assert self.flagged_steps is not None
        role, rank = self.trace.processes.row(process, named=True)["role"], events["rank"].first()
        of_process = pl.col("process") == process
        flight_threads = self.trace.threads.filter(pl.col("in_flight"), of_process)["thread"]
        steps = self.trace.steps.filter(of_process)
        begin_ns, end_ns = steps["start_ns"].min(), steps["end_ns"].max()
        return sum_up(
            events,
            flight_threads,
            self.flagged_steps.select_kept(role, int(rank) if isinstance(rank, int) else -1),
            self.flagged_steps.select_touched(),
            (begin_ns, end_ns) if isinstance(begin_ns, int) and isinstance(end_ns, int) else None,
        )


def select_content(
    trace: Trace,
    choice: Choice | None = None,
    *,
    flagged: Flagged | None = None,
    anonymous: bool = False,
    sources: Sequence[Path] = (),
) -> Content:
    """Choose a part of a run; with `anonymous`, all names are looked through once.

    Raises:
        InvalidArgument: the run has none of the ranks or steps.
    """
    choice = choice or EVERYTHING
    check_ranks(choice, trace.workers["rank"])
    paths = tuple(sources) or ((trace.path,) if trace.path else ())
    return Content(
        trace=cut_to_choice(trace, choice),
        name=ANONYMOUS if anonymous or not paths else shown_name(paths[0].resolve().name),
        choice=choice,
        flagged_steps=flagged,
        replacements=_make_replacements(trace) if anonymous else None,
        source_paths=paths,
    )


def _read_events(trace: Trace, process: int) -> pl.DataFrame:
    """Return all events of one process; nothing else of a conversion reads events."""
    return trace.events_of(process)


def _make_replacements(trace: Trace) -> Replacements:
    """Read the texts of all processes' events, and number the names in them."""
    texts: dict[str, None] = {}  # in order of first occurrence
    for process in trace.processes["process"]:
        events = _read_events(trace, process)
        for column in events.select("name", "communicator", "algorithm"):
            texts |= dict.fromkeys(column.drop_nulls().unique(maintain_order=True).cast(pl.String))
    hosts = trace.processes["host"].drop_nulls().unique(maintain_order=True)
    return Replacements(hosts, iterate_texts(trace, texts))


def _rename_column(column: pl.Series, rename: Callable[[str], str]) -> pl.Series:
    names = [None if name is None else rename(name) for name in column]
    return pl.Series(column.name, names, pl.String)
