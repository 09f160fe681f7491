"""What a conversion writes: some ranks, steps and times of a run, process by process.

Formats ask for one process at a time, so that no more than that is held, however large the run is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.exports.anonymous import Replacements, texts_of
from tracelens.exports.down_sampling import Part, sum_up
from tracelens.model.fmt import shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelens.exports.down_sampling import Flagged
    from tracelens.model.trace import Trace

__all__ = ["ANONYMOUS", "Choice", "Content", "Saved", "begin_of", "of_trace"]

Ranges = tuple[tuple[int, int], ...]  # first and last numbers, inclusive

ANONYMOUS: Final = "run"
_ORDER: Final = ("rank", "incarnation", "pid", "process")


@dataclass(frozen=True)
class Choice:
    """Which part of a run: worker ranks, steps, and a window [start, end) in ns; null for all.

    `asked` names them in words, for notes.
    """

    ranks: Ranges | None = None
    steps: Ranges | None = None
    window: tuple[int, int] | None = None
    asked: str = ""


@dataclass(frozen=True)
class Saved:
    """What was written: events, and bytes on disk; `summed_up` events stand as `sums` spans."""

    events: int
    nbytes: int
    summed_up: int = 0
    sums: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Content:
    """A part of a run; `names` replaces names, `kept` says what is not summed up; null for neither.

    `processes` are as in `Trace.processes`, workers first and by rank, with names replaced. `sources`
    are the runs' paths, for what only their files know.
    """

    trace: Trace
    name: str
    choice: Choice = field(default_factory=Choice)
    kept: Flagged | None = None
    names: Replacements | None = None
    sources: tuple[Path, ...] = ()

    @cached_property
    def processes(self) -> pl.DataFrame:
        """The chosen processes; those on the common clock have the domain of its host."""
        table = self.trace.processes
        if self.choice.ranks is not None:
            chosen = (pl.col("role") == "worker") & _within("rank", self.choice.ranks)
            table = table.filter(chosen)
        hosts = self.trace.alignment.hosts
        tied = [host.clock_domain for host in hosts if host.uncertainty_ns is not None]
        common = dict.fromkeys(tied, next(iter(tied), ""))
        table = table.with_columns(pl.col("clock_domain").replace(common))
        table = table.sort(pl.col("role") == "ps", *_ORDER)
        if self.names is None:
            return table
        return table.with_columns(
            _renamed(table["host"], self.names.host),
            _renamed(table["job"], self.names.job),
            _renamed(table["clock_domain"], self.names.clock),
        )

    @cached_property
    def window(self) -> tuple[int, int]:
        """The time of the chosen steps within the chosen window, ns; very long if all is chosen.

        Raises:
            InvalidArgument: the run has none of the chosen steps.
        """
        begin, end = self.choice.window or (-(1 << 62), 1 << 62)
        if self.choice.steps is None:
            return begin, end
        steps = self.trace.steps
        inside = steps.filter(_within("step", self.choice.steps))
        if inside.is_empty():
            raise _without_steps(self.choice.steps, steps["step"].unique().sort().to_list())
        first, last = inside.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        return max(begin, first), min(end, last)

    def part(self, process: int) -> Part:
        """Return the chosen events of one process."""
        events = self._chosen(_events_of(self.trace, process))
        part = self._summed(process, events) if self.kept is not None else Part(events)
        return part if self.names is None else part._replace(events=self.names.events(part.events))

    def samples(self, process: int) -> pl.DataFrame:
        """Return the samples of one process's stacks that touch the window."""
        begin, end = self.window
        touching = (pl.col("start_ns") < end) & (pl.col("end_ns") > begin)
        samples = self.trace.samples.filter(pl.col("process") == process).filter(touching)
        return samples if self.names is None else self.names.samples(samples)

    def text(self, text: str) -> str:
        """Return a text as it may be written."""
        return text if self.names is None else self.names.text(text)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is left out or changed as asked, a sentence each."""
        asked = f"As asked, only {self.choice.asked} of the run are here." * bool(self.choice.asked)
        kept = self.text(self.kept.sentence) if self.kept is not None else ""
        replaced = (
            "Hosts, users, jobs and paths have numbers instead of names."
            if self.names is not None
            else ""
        )
        return tuple(filter(None, (asked, kept, replaced)))

    def nothing(self) -> InvalidArgument:
        """Return the error for a choice without any event."""
        asked = self.choice.asked or "this run"
        return InvalidArgument(
            f"Nothing is selected: {asked} hold no event that this format has; see what there is with "
            "'tracelens info'."
        )

    def _chosen(self, events: pl.DataFrame) -> pl.DataFrame:
        begin, end = self.window
        start, until = pl.col("start_ns"), pl.col("end_ns")
        touching = (start < end) & (until.is_null() | (until > begin) | (start >= begin))
        if self.choice.steps is not None:
            touching &= (pl.col("step") < 0) | _within("step", self.choice.steps)
        return events.filter(touching)

    def _summed(self, process: int, events: pl.DataFrame) -> Part:
        assert self.kept is not None
        role, rank = self.trace.processes.row(process, named=True)["role"], events["rank"].first()
        threads = self.trace.threads.filter(pl.col("in_flight"), pl.col("process") == process)
        steps = self.trace.steps.filter(pl.col("process") == process)
        spent = steps.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        return sum_up(
            events,
            threads["thread"],
            self.kept.whole(role, int(rank) if isinstance(rank, int) else -1),
            self.kept.touched(),
            None if None in spent else spent,
        )


def of_trace(
    trace: Trace,
    choice: Choice | None = None,
    *,
    kept: Flagged | None = None,
    anonymous: bool = False,
    sources: Sequence[Path] = (),
) -> Content:
    """Choose a part of a run; with `anonymous`, all names are looked through once.

    Raises:
        InvalidArgument: no process is chosen.
    """
    paths = tuple(sources) or ((trace.path,) if trace.path else ())
    content = Content(
        trace=trace,
        name=ANONYMOUS if anonymous or not paths else shown_name(paths[0].resolve().name),
        choice=choice or Choice(),
        kept=kept,
        names=_replacements(trace) if anonymous else None,
        sources=paths,
    )
    if content.processes.is_empty():
        raise InvalidArgument(
            f"{content.choice.asked}: none of them is a worker of this run; 'tracelens info' lists them."
        )
    return content


def begin_of(trace: Trace) -> int:
    """Where time begins: with the first step, as on every page; without one, with the first event."""
    starts = (trace.steps["start_ns"], trace.processes["first_ns"])
    found = (times.min() for times in starts if times.count())
    first = next(found, 0)
    return first if isinstance(first, int) else 0


def _events_of(trace: Trace, process: int) -> pl.DataFrame:
    """Return all events of one process; nothing else of a conversion reads events."""
    return trace.events_of(process)


def _replacements(trace: Trace) -> Replacements:
    names: dict[str, None] = {}
    for process in trace.processes["process"]:
        found = _events_of(trace, process).select("name", "communicator", "algorithm")
        for column in found:
            names |= dict.fromkeys(column.drop_nulls().unique(maintain_order=True).cast(pl.String))
    hosts = trace.processes["host"].drop_nulls().unique(maintain_order=True)
    return Replacements(hosts, texts_of(trace, names))


def _without_steps(asked: Ranges, there: list[int]) -> InvalidArgument:
    present = f"it has steps {there[0]} to {there[-1]}" if there else "it has none"
    return InvalidArgument(
        f"--steps: this run has no step from {asked[0][0]} to {asked[-1][1]}; {present}."
    )


def _renamed(column: pl.Series, rename: object) -> pl.Series:
    assert callable(rename)
    return pl.Series(
        column.name, [None if word is None else rename(word) for word in column], pl.String
    )


def _within(column: str, ranges: Ranges) -> pl.Expr:
    return pl.any_horizontal(pl.lit(value=False), *(pl.col(column).is_between(*r) for r in ranges))
