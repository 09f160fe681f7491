"""Runs of equal stacks of one thread, and the spans that they mean."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from tracelens.readers.files import ReadFile
from tracelens.readers.functions import function_meaning
from tracelens.readers.gathered import SpanBuffer, SpanMeaning
from tracelens.readers.words import USER_CODE
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FRAMES: Final = 2_000  # frames of a stack: deeper ones are not read [policy]
MAX_CHARACTERS_OF_SPAN: Final = 256  # characters of a span's name [policy]
MAX_CHARACTERS_OF_FRAME: Final = (
    1_000  # of a function's name, or of its file's, in a stack [policy]
)
_RANK: Final = re.compile(r"^rank (\d{1,6}): ")  # as TraceLens exports speedscope's JSON
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
        name, file = self.name[:MAX_CHARACTERS_OF_FRAME], self.file[:MAX_CHARACTERS_OF_FRAME]
        return f"{name} ({file}:{self.line})" if self.file else name

    @property
    def function(self) -> str:
        """Name and file of the function."""
        text = f"{self.name} ({self.file})" if self.file else self.name
        return text[:MAX_CHARACTERS_OF_SPAN]


class Run(NamedTuple):
    """The time during which samples found the stack with a number."""

    start_ns: int
    end_ns: int
    stack: int


class Thread(NamedTuple):
    """A thread of a process; `pid` is 0 where it is not known."""

    pid: int
    name: str


@dataclass(eq=False)
class Stacks(ReadFile):
    """What one file holds: stacks of threads as runs, and as rows.

    `leaves_out_idle`: samples of threads that were idle are left out, so times are sums of the others.
    """

    runs: dict[Thread, list[Run]] = field(default_factory=dict)
    leaves_out_idle: bool = False
    _numbers: dict[tuple[Frame, ...], int] = field(default_factory=dict)
    _text_bytes: int = 0

    def number_stack(self, frames: tuple[Frame, ...]) -> int:
        """Return the number of a stack, outermost frame first: a program comes back to a few.

        Raises:
            NotATrace: the texts of all stacks are larger than a file of samples may be.
        """
        stack_count = len(self._numbers)
        stack_number = self._numbers.setdefault(frames, stack_count)
        if stack_number == stack_count:
            self._text_bytes += sum(len(frame.text) for frame in frames)
            refuse_beyond("samples", self._text_bytes, "the text of its stacks")
        return stack_number

    def set_rows(self) -> Stacks:
        """Set `rows`: spans are phases, by the outermost function that names one, else functions."""
        spans = SpanBuffer[Key, Thread]()
        key_of_stack = [*map(_key_of_stack, self._numbers)]
        for thread, runs in self.runs.items():
            for start_ns, end_ns, key in _merge_runs(runs, key_of_stack):
                spans.add(start_ns, end_ns, key, thread)
        rank_of_thread = self._ranks()
        threads_of_rank: dict[int, list[Thread]] = {}
        for thread in self.runs:
            threads_of_rank.setdefault(rank_of_thread.get(thread, 0), []).append(thread)
        for threads in threads_of_rank.values():  # samples do not separate steps: a rank has one
            start_ns = min(self.runs[thread][0].start_ns for thread in threads)
            end_ns = max(self.runs[thread][-1].end_ns for thread in threads)
            busiest = max(threads, key=lambda thread: len(self.runs[thread]))
            spans.add(start_ns, end_ns, ("step", None, "all of the profile"), busiest)
        names = self._thread_names()
        self.rows = spans.frame(lambda key: SpanMeaning(*key), names.__getitem__)
        if rank_of_thread:
            self.says_ranks = True
            ranks = pl.Series([rank_of_thread[thread] for thread in spans.threads], dtype=pl.Int32)
            thread_of_row = pl.Series(spans.thread_of_row, dtype=pl.UInt32)
            self.rows = self.rows.with_columns(rank=ranks.gather(thread_of_row))
        return self

    def _ranks(self) -> dict[Thread, int]:
        """Return the rank of each thread; empty where not all names say one."""
        matches = {thread: _RANK.match(thread.name) for thread in self.runs}
        ranks = {thread: int(match[1]) for thread, match in matches.items() if match}
        return ranks if len(ranks) == len(matches) else {}

    def _thread_names(self) -> dict[Thread, str]:
        has_several_processes = len({thread.pid for thread in self.runs}) > 1
        names = {thread: _RANK.sub("", thread.name) or "thread" for thread in self.runs}
        if not has_several_processes:
            return names
        return {thread: f"{name} of {thread.pid}" for thread, name in names.items()}

    def samples(self, rank: int) -> pl.DataFrame:
        """Return rows of `SAMPLE_COLUMNS` without process and thread; `rank` is that of the file."""
        ranks, names = self._ranks(), self._thread_names()
        threads = [(ranks.get(key, rank), key.pid or None, name) for key, name in names.items()]
        thread_of_run = np.repeat(np.arange(len(threads)), [*map(len, self.runs.values())])
        rows = pl.DataFrame(threads, _THREAD_COLUMNS, orient="row")[thread_of_run]
        runs = np.array([*chain.from_iterable(self.runs.values())], np.int64)
        start_ns, end_ns, stack = runs.reshape(-1, 3).T
        texts = [[frame.text for frame in frames] for frames in self._numbers]
        stacks = pl.Series(texts, dtype=pl.List(pl.String))
        return rows.with_columns(start_ns=start_ns, end_ns=end_ns, frames=stacks.gather(stack))


def _merge_runs(runs: list[Run], keys: list[Key]) -> Iterator[tuple[int, int, Key]]:
    """Yield spans: runs that follow each other without a gap and mean the same are one.

    Args:
        runs: Those of a thread, by begin.
        keys: The meaning of each stack, by its number.
    """
    start_ns = runs[0].start_ns if runs else 0
    for run, next_run in zip_longest(runs, runs[1:]):
        is_adjacent = next_run is not None and next_run.start_ns == run.end_ns
        if not (is_adjacent and keys[next_run.stack] == keys[run.stack]):
            yield start_ns, run.end_ns, keys[run.stack]
            start_ns = next_run.start_ns if next_run else 0


def _key_of_stack(frames: tuple[Frame, ...]) -> Key:
    """Return the meaning of a stack: no step, as samples do not separate one from the next."""
    for frame in frames:
        kind, op = function_meaning(frame.name, frame.file)
        if (kind, op) != USER_CODE and kind != "step":
            return kind, op, frame.function
    return (*USER_CODE, frames[-1].function)
