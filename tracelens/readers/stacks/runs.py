"""Runs of equal stacks of one thread, and the spans that they mean."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from tracelens.readers.files import ReadFile
from tracelens.readers.functions import find_function_meaning
from tracelens.readers.gathered import SpanBuffer, SpanMeaning
from tracelens.readers.words import USER_CODE
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FRAMES: Final = 2_000  # frames of a stack: deeper ones are not read [policy]
MAX_CHARACTERS_OF_SPAN: Final = 256  # characters of a span's name [policy]
# of a function's name, or of its file's, in a stack [policy]
MAX_CHARACTERS_OF_FRAME: Final = 1_000
_RANK: Final = re.compile(r"^rank (\d{1,6}): ")  # as TraceLens exports speedscope's JSON
_THREAD_COLUMNS: Final = {"rank": pl.Int32(), "pid": pl.Int64(), "thread_name": pl.String()}
Key: TypeAlias = tuple[str, str | None, str]  # kind, operation, name


class Frame(NamedTuple):
    """A function that was running, and the line that it was at; 0 where that is not known."""

    name: str
    file: str
    line: int

    @property
    def sample_text(self) -> str:
        """The frame as samples have it; what is very long is cut, as each stack repeats it."""
        name, file = self.name[:MAX_CHARACTERS_OF_FRAME], self.file[:MAX_CHARACTERS_OF_FRAME]
        return f"{name} ({file}:{self.line})" if self.file else name

    @property
    def function_name(self) -> str:
        """Name and file of the function."""
        text = f"{self.name} ({self.file})" if self.file else self.name
        return text[:MAX_CHARACTERS_OF_SPAN]


class Run(NamedTuple):
    """The time during which samples found one stack."""

    start_ns: int
    end_ns: int
    stack_number: int  # by `Stacks.number_stack`


class Thread(NamedTuple):
    """A thread of a process; `pid` is 0 where it is not known."""

    pid: int
    name: str


@dataclass(eq=False)
class Stacks(ReadFile):
    """What one file holds: stacks of threads as runs, and as rows."""

    runs_by_thread: dict[Thread, list[Run]] = field(default_factory=dict)
    leaves_out_idle: bool = False  # times are sums of the samples of threads that were not idle
    _number_by_stack: dict[tuple[Frame, ...], int] = field(default_factory=dict)
    _text_bytes: int = 0  # of all stacks

    def number_stack(self, frames: tuple[Frame, ...]) -> int:
        """Return the number of a stack, outermost frame first: a program comes back to a few.

        Raises:
            NotATrace: the texts of all stacks are larger than a file of samples may be.
        """
        stack_count = len(self._number_by_stack)
        stack_number = self._number_by_stack.setdefault(frames, stack_count)
        if stack_number == stack_count:
            self._text_bytes += sum(len(frame.sample_text) for frame in frames)
            refuse_beyond("samples", self._text_bytes, "the text of its stacks")
        return stack_number

    def set_rows(self) -> Stacks:
        """Set `rows`: spans are phases, by the outermost function that names one, else functions."""
        spans = SpanBuffer[Key, Thread]()
        keys = [*map(_find_meaning, self._number_by_stack)]  # of the stack with each number
        for thread, runs in self.runs_by_thread.items():
            for start_ns, end_ns, key in _merge_runs(runs, keys):
                spans.add(start_ns, end_ns, key, thread)
        rank_by_thread = self._find_ranks()
        threads_of_rank: dict[int, list[Thread]] = {}
        for thread in self.runs_by_thread:
            threads_of_rank.setdefault(rank_by_thread.get(thread, 0), []).append(thread)
        for threads in threads_of_rank.values():  # samples do not separate steps: a rank has one
            start_ns = min(self.runs_by_thread[thread][0].start_ns for thread in threads)
            end_ns = max(self.runs_by_thread[thread][-1].end_ns for thread in threads)
            busiest_thread = max(threads, key=lambda thread: len(self.runs_by_thread[thread]))
            spans.add(start_ns, end_ns, ("step", None, "all of the profile"), busiest_thread)
        name_by_thread = self._name_threads()
        self.rows = spans.to_frame(lambda key: SpanMeaning(*key), name_by_thread.__getitem__)
        if rank_by_thread:
            self.has_rank_column = True
            ranks = pl.Series(
                [rank_by_thread[thread] for thread in spans.number_by_thread], dtype=pl.Int32
            )
            thread_of_row = pl.Series(spans.thread_numbers, dtype=pl.UInt32)
            self.rows = self.rows.with_columns(rank=ranks.gather(thread_of_row))
        return self

    def _find_ranks(self) -> dict[Thread, int]:
        """Return the rank of each thread; empty where not all names say one."""
        matches = {thread: _RANK.match(thread.name) for thread in self.runs_by_thread}
        ranks = {thread: int(match[1]) for thread, match in matches.items() if match}
        return ranks if len(ranks) == len(matches) else {}

    def _name_threads(self) -> dict[Thread, str]:
        has_several_processes = len({thread.pid for thread in self.runs_by_thread}) > 1
        names = {thread: _RANK.sub("", thread.name) or "thread" for thread in self.runs_by_thread}
        if not has_several_processes:
            return names
        return {thread: f"{name} of {thread.pid}" for thread, name in names.items()}

    def build_samples(self, rank: int) -> pl.DataFrame:
        """Return a row per run in `SAMPLE_COLUMNS`, without process and thread.

        `rank` is that of the file, for threads that do not say theirs.
        """
        rank_by_thread = self._find_ranks()
        threads = [
            (rank_by_thread.get(thread, rank), thread.pid or None, name)
            for thread, name in self._name_threads().items()
        ]
        thread_of_run = np.repeat(
            np.arange(len(threads)), [*map(len, self.runs_by_thread.values())]
        )
        thread_cells = pl.DataFrame(threads, _THREAD_COLUMNS, orient="row")[thread_of_run]
        runs = np.array([*chain.from_iterable(self.runs_by_thread.values())], np.int64)
        start_ns, end_ns, stack_numbers = runs.reshape(-1, 3).T
        texts_of_stacks = [
            [frame.sample_text for frame in frames] for frames in self._number_by_stack
        ]
        frames = pl.Series(texts_of_stacks, dtype=pl.List(pl.String)).gather(stack_numbers)
        return thread_cells.with_columns(start_ns=start_ns, end_ns=end_ns, frames=frames)


def _merge_runs(runs: list[Run], keys: list[Key]) -> Iterator[tuple[int, int, Key]]:
    """Yield begin, end and meaning of spans: adjacent runs that mean the same are one.

    Args:
        runs: Those of a thread, by begin.
        keys: The meaning of each stack, by its number.
    """
    start_ns = runs[0].start_ns if runs else 0
    for run, next_run in zip_longest(runs, runs[1:]):
        is_adjacent = next_run is not None and next_run.start_ns == run.end_ns
        if not (is_adjacent and keys[next_run.stack_number] == keys[run.stack_number]):
            yield start_ns, run.end_ns, keys[run.stack_number]
            start_ns = next_run.start_ns if next_run else 0


def _find_meaning(frames: tuple[Frame, ...]) -> Key:
    """Return the meaning of a stack: no step, as samples do not separate one from the next."""
    for frame in frames:
        kind, op = find_function_meaning(frame.name, frame.file)
        if (kind, op) != USER_CODE and kind != "step":
            return kind, op, frame.function_name
    return (*USER_CODE, frames[-1].function_name)
