"""Runs of equal stacks of one thread, and the spans that they stand for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from tracelens.readers.files import ReadFile
from tracelens.readers.functions import OF_THE_USER, function_meaning
from tracelens.readers.gathered import Gathered, What
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Frame", "Run", "Stacks", "Thread"]

_LONGEST: Final = 256
_LONGEST_TEXT: Final = 1_000  # characters of a function's name, or of its file's, in a stack
_RANK: Final = re.compile(r"^rank (\d{1,6}): ")  # as TraceLens exports speedscope's JSON
_STEP: Final = "step"
_THREAD_COLUMNS: Final = {"rank": pl.Int32(), "pid": pl.Int64(), "thread_name": pl.String()}
Key: TypeAlias = tuple[str, str | None, str]  # kind, operation, name


class Frame(NamedTuple):
    """A function that was running, and the line that it was at; 0 where that is not known."""

    name: str
    file: str
    line: int

    @property
    def text(self) -> str:
        """As frames of samples are written; what is very long is cut, as each stack repeats it."""
        name = self.name[:_LONGEST_TEXT]
        return f"{name} ({self.file[:_LONGEST_TEXT]}:{self.line})" if self.file else name


class Run(NamedTuple):
    """For how long a stack was seen, by its number."""

    start_ns: int
    end_ns: int
    stack: int


class Thread(NamedTuple):
    """A thread of a process, 0 where its number is not known."""

    pid: int
    name: str


@dataclass(eq=False)
class Stacks(ReadFile):
    """What one file holds: stacks of threads as runs, and as rows.

    `compressed`: samples of threads that were idle are left out, so times are sums of what is left.
    """

    runs: dict[Thread, list[Run]] = field(default_factory=dict)
    compressed: bool = False
    _numbers: dict[tuple[Frame, ...], int] = field(default_factory=dict)
    _text_bytes: int = 0

    def number(self, frames: tuple[Frame, ...]) -> int:
        """Return the number of a stack, outermost frame first: a program comes back to a few.

        Raises:
            NotATrace: the texts of all stacks are larger than a file of samples may be.
        """
        known = len(self._numbers)
        number = self._numbers.setdefault(frames, known)
        if number == known:
            self._text_bytes += sum(len(frame.text) for frame in frames)
            refuse_beyond("samples", self._text_bytes, "the text of its stacks")
        return number

    def translated(self) -> Stacks:
        """Set `rows`: a span is a phase, by the outermost function that is one, else a function."""
        spans = Gathered[Key, Thread]()
        keys = [*map(_key, self._numbers)]
        for thread, runs in self.runs.items():
            for start, end, key in _merged(runs, keys):
                spans.add(start, end, key, thread)
        several = len({thread.pid for thread in self.runs}) > 1
        ranks = self._ranks()
        of_rank: dict[int, list[Thread]] = {}
        for thread in self.runs:
            of_rank.setdefault(ranks.get(thread, 0), []).append(thread)
        for threads in of_rank.values():  # samples do not tell steps apart: all of a rank is one
            begin = min(self.runs[thread][0].start_ns for thread in threads)
            end = max(self.runs[thread][-1].end_ns for thread in threads)
            longest = max(threads, key=lambda thread: len(self.runs[thread]))
            spans.add(begin, end, ("step", None, "all of the profile"), longest)
        self.rows = spans.frame(
            lambda key: What(*key), lambda thread: _shown(thread, several=several)
        )
        if ranks:
            self.says_ranks = True
            known = pl.Series([ranks[thread] for thread in spans.places], dtype=pl.Int32)
            placed = pl.Series(spans.placed, dtype=pl.UInt32)
            self.rows = self.rows.with_columns(known.gather(placed).alias("rank"))
        return self

    def _ranks(self) -> dict[Thread, int]:
        """Return the rank of each thread; empty where not all names say one."""
        found = {thread: _RANK.match(thread.name) for thread in self.runs}
        ranks = {thread: int(rank[1]) for thread, rank in found.items() if rank}
        return ranks if len(ranks) == len(found) else {}

    def samples(self, rank: int) -> pl.DataFrame:
        """Return rows of `SAMPLE_COLUMNS` without process and thread, and their rank, or the file's."""
        several = len({thread.pid for thread in self.runs}) > 1
        ranks = self._ranks()
        threads = [
            (ranks.get(thread, rank), thread.pid or None, _shown(thread, several=several))
            for thread in self.runs
        ]
        place = np.repeat(np.arange(len(threads)), [*map(len, self.runs.values())])
        of_thread = pl.DataFrame(threads, _THREAD_COLUMNS, orient="row")[place]
        runs = np.array([*chain.from_iterable(self.runs.values())], np.int64).reshape(-1, 3)
        texts = [[frame.text for frame in frames] for frames in self._numbers]
        stacks = pl.Series(texts, dtype=pl.List(pl.String))
        return of_thread.with_columns(
            start_ns=runs[:, 0], end_ns=runs[:, 1], frames=stacks.gather(runs[:, 2])
        )


def _shown(thread: Thread, *, several: bool) -> str:
    name = _RANK.sub("", thread.name) or "thread"
    return f"{name} of {thread.pid}" if several else name


def _merged(runs: list[Run], keys: list[Key]) -> Iterator[tuple[int, int, Key]]:
    """Yield spans: runs that follow each other and stand for the same (`keys` by stack) are one."""
    begin, until, key = 0, -1, None
    for run in chain(runs, [None]):
        found = None if run is None else keys[run.stack]
        if key is not None and (run is None or found != key or run.start_ns != until):
            yield begin, until, key
            key = None
        if run is not None:
            if key is None:
                begin, key = run.start_ns, found
            until = run.end_ns


def _key(frames: tuple[Frame, ...]) -> Key:
    """Return what a stack stands for: no step, as samples do not separate one from the next."""
    for frame in frames:
        found = function_meaning(frame.name, frame.file)
        if found != OF_THE_USER and found[0] != _STEP:
            return (*found, _called(frame))
    return (*OF_THE_USER, _called(frames[-1]))


def _called(frame: Frame) -> str:
    return f"{frame.name} ({frame.file})"[:_LONGEST] if frame.file else frame.name[:_LONGEST]
