"""Reads Horovod's timeline: of each operation, what each rank waited for it, as rank 0 saw it.

Tensors are processes in the file. An operation is negotiated first: the event ``NEGOTIATE_ALLREDUCE``
holds a mark for each rank at the time at which rank 0 heard that it was ready. Then it runs, as
``ALLREDUCE``, with activities in it. Operations that Horovod knows from the step before (its response
cache) have no marks.

Source: horovod/common/timeline.cc. What is made of it: docs/formats.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracelens.model.recognition import Gap
from tracelens.readers.event_stream import EventStream, read_first_bytes
from tracelens.readers.files import FileSet, FilesReader, ReadFile
from tracelens.readers.json_values import MOST_NS, MOST_US, as_number, as_object, as_text
from tracelens.readers.words import find_meaning
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# share of a tensor's operations: with fewer lost or added, it is still one of each step [chosen]
MAX_SHARE_OF_CALLS_LOST: Final = 0.1
# share of how late the last rank is: one that goes on sooner after each operation waited [chosen]
MAX_PAUSE_AFTER_WAIT: Final = 0.2
MAX_ACTIVITIES_LISTED: Final = 6  # activities: the shares of more are not listed [policy]
_MARK: Final = re.compile(rb'"NEGOTIATE_[A-Z]|"start_time_since_epoch_in_micros"')
_NEGOTIATION: Final = "NEGOTIATE_"
_CYCLE: Final = "CYCLE_START"
_ITEM_BYTES: Final = {
    **dict.fromkeys(("uint8", "int8", "bool", "byte"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "half"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64"), 8),
}
_DIMENSION: Final = re.compile(r"\d+")
_ROW: Final = {
    "rank": pl.Int32(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), "kind": pl.String(),
    "op": pl.String(), "name": pl.String(), "thread": pl.String(), "step": pl.Int32(),
    "seq": pl.Int64(), "bytes": pl.Int64(), "status": pl.String(),
}  # fmt: skip


@dataclass(eq=False)
class _Call:
    """An operation: when ranks were ready for it, when it ran, and on which tensor.

    Times are microseconds since the file begins.
    """

    tensor: str
    begin_us: int  # when rank 0 began to negotiate it
    ready_us_by_rank: dict[int, int] = field(default_factory=dict)  # empty without marks
    op: str = ""
    end_us: int = -1  # until it ends
    nbytes: int | None = None
    step: int | None = None

    @property
    def begin_us_by_rank(self) -> dict[int, int]:
        """Time at which each rank was ready, or rank 0 alone began, in microseconds."""
        return self.ready_us_by_rank or {0: self.begin_us}


class _RankCall(NamedTuple):
    """An operation of one rank, from when it was ready to its end, in microseconds."""

    ready_us: int
    step: int
    end_us: int


@dataclass(eq=False)
class _Tensor:
    """A process of the file: its name, the operation that it is in, and its events that are open."""

    name: str = ""
    call: _Call | None = None
    open_events: list[tuple[str, int]] = field(default_factory=list)  # name, begin in microseconds


@dataclass(eq=False)
class Timeline(ReadFile):
    """The content of a file. Its times are microseconds since `origin_us`."""

    calls: list[_Call] = field(default_factory=list)  # in order of their ends
    tensor_by_pid: dict[int, _Tensor] = field(default_factory=lambda: defaultdict(_Tensor))
    us_by_activity: Counter[str] = field(default_factory=Counter)  # time of operations of rank 0
    origin_us: int = 0  # since 1970
    ranks: set[int] = field(default_factory=set)  # those that were ready for some call
    unmarked_count: int = 0  # calls that do not say when other ranks were ready

    def apply_event(self, event: dict[str, Any]) -> None:
        """Apply an event of the file to its tensor, and count it.

        A tensor is a process of the file. Its operations begin (B) and end (E); a complete event (X)
        marks that the rank of its name is ready.
        """
        phase, name = event.get("ph"), event.get("name")
        event_us = as_number(event.get("ts"), MOST_US)
        tensor = self.tensor_by_pid[as_number(event.get("pid"), MOST_US) or 0]
        args = as_object(event.get("args"))
        if phase == "M":
            if name == "process_name" and isinstance(args.get("name"), str):
                tensor.name = as_text(args["name"])
            self.left_out_counts["names of tensors"] += 1
        elif phase in ("i", "I"):
            self.left_out_counts["begins of cycles" if name == _CYCLE else "instants"] += 1
        elif event_us is None or (phase != "E" and not isinstance(name, str)):
            self.unusable_count += 1
        elif phase == "B":
            self._begin(str(name), event_us, tensor)
        elif phase == "X":
            self._mark_ready(str(name), event_us, tensor)
        elif phase == "E" and tensor.open_events:
            self._end(event_us, tensor, args)
        else:
            self.unusable_count += 1
        origin_us = as_number(args.get("start_time_since_epoch_in_micros"), MOST_US)
        self.origin_us = origin_us or self.origin_us

    def _begin(self, name: str, begin_us: int, tensor: _Tensor) -> None:
        """Open an event of a tensor: a negotiation, its operation, or an activity within that."""
        is_negotiation = name.startswith(_NEGOTIATION)
        if is_negotiation and tensor.open_events:  # one operation at a time: an end was lost
            tensor.open_events.clear()
            self.left_out_counts["operations that do not end"] += 1
        if is_negotiation:
            tensor.call = _Call(tensor.name, begin_us)
        elif not tensor.open_events:
            tensor.call = tensor.call or _Call(tensor.name, begin_us)
            tensor.call.op = name
        tensor.open_events.append((as_text(name), begin_us))
        is_outer = len(tensor.open_events) == 1
        self.event_counts["begins" if is_outer else "begins of activities"] += 1

    def _mark_ready(self, name: str, ready_us: int, tensor: _Tensor) -> None:
        """Take the mark that the rank called `name` is ready; its first mark counts."""
        is_rank = name.isdecimal() and len(name) < len(str(MOST_RANKS))
        if not is_rank or tensor.call is None:
            self.unusable_count += 1
            return
        tensor.call.ready_us_by_rank.setdefault(int(name), ready_us)
        self.event_counts["ranks that are ready"] += 1

    def _end(self, end_us: int, tensor: _Tensor, args: dict[str, Any]) -> None:
        """Close the last event of a tensor: an activity, a negotiation, or the operation of its call."""
        name, begin_us = tensor.open_events.pop()
        self.event_counts["ends"] += 1
        if tensor.open_events:
            self.us_by_activity[name] += max(0, end_us - begin_us)
        elif not name.startswith(_NEGOTIATION) and tensor.call is not None:
            tensor.call.end_us, tensor.call.nbytes = end_us, _tensor_bytes(args)
            self.calls.append(tensor.call)
            tensor.call = None

    def set_rows(self) -> Timeline:
        """Set `rows`, one per operation or wait and rank, from all calls; return the timeline itself.

        A call without marks (`ready_us_by_rank`) tells nothing of other ranks. If that is so of most,
        only rank 0 gets rows.
        """
        unended_count = sum(tensor.call is not None for tensor in self.tensor_by_pid.values())
        if unended_count:
            self.left_out_counts["operations that do not end"] += unended_count
        self.unmarked_count = sum(not call.ready_us_by_rank for call in self.calls)
        _number_steps(self.calls)
        self.ranks = {rank for call in self.calls for rank in call.ready_us_by_rank}
        if 2 * self.unmarked_count > len(self.calls):
            for call in self.calls:
                call.ready_us_by_rank = {0: call.ready_us_by_rank.get(0, call.begin_us)}
        rows = [*_reduction_rows(self.calls), *_wait_rows(self.calls)]
        time_columns = pl.col("start_ns", "end_ns")
        self.rows = pl.DataFrame(rows, schema=_ROW, orient="row").with_columns(
            (time_columns + self.origin_us) * 1_000, clock=pl.lit("rank 0")
        )
        return self


def _number_steps(calls: list[_Call]) -> None:
    """Set `step` of calls by tensors that come back: a second call of a tensor begins a step.

    Only tensors that come back in every step tell: those with about the usual number of calls, as some
    may be lost. Calls of others keep no step.
    """
    call_count_by_tensor = Counter(call.tensor for call in calls)
    counts_of_calls = Counter(call_count_by_tensor[call.tensor] for call in calls)
    ((usual_count, _),) = counts_of_calls.most_common(1) or ((0, 0),)
    if usual_count < 2:
        return
    step_index = 0
    tensors_of_step: set[str] = set()
    for call in calls:
        count_difference = abs(call_count_by_tensor[call.tensor] - usual_count)
        if count_difference > MAX_SHARE_OF_CALLS_LOST * usual_count:
            continue
        if call.tensor in tensors_of_step:
            step_index += 1
            tensors_of_step.clear()
        tensors_of_step.add(call.tensor)
        call.step = step_index


def _reduction_rows(calls: list[_Call]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of `_ROW`, in microseconds: an operation of each rank that is known to take part."""
    for seq, call in enumerate(calls):
        kind, op = find_meaning(call.op) or ("reduction", None)
        for rank, ready_us in call.begin_us_by_rank.items():
            yield (
                rank, ready_us, max(ready_us, call.end_us), kind, op, call.tensor, "reductions",
                call.step, seq, call.nbytes, "closed",
            )  # fmt: skip


def _wait_rows(calls: list[_Call]) -> Iterator[tuple[Any, ...]]:
    """Yield each rank's waits as rows of `_ROW`, in microseconds since the file begins.

    The file itself does not hold them. A wait lasts from the rank's last tensor of a step to the end
    of the last operation, as in `DistributedOptimizer`; ranks that await each operation wait in each.
    """
    calls_by_rank: dict[int, list[_RankCall]] = defaultdict(list)
    end_us_by_step: dict[int, int] = {}
    for call in calls:
        if call.step is not None:
            end_us_by_step[call.step] = max(end_us_by_step.get(call.step, 0), call.end_us)
            for rank, ready_us in call.begin_us_by_rank.items():
                end_us = max(ready_us, call.end_us)
                calls_by_rank[rank].append(_RankCall(ready_us, call.step, end_us))
    awaits_each_call = _awaits_each_call(calls, calls_by_rank.values())
    for rank, rank_calls in calls_by_rank.items():
        last_call_by_step = {call.step: call for call in sorted(rank_calls)}
        waits_of_steps = [
            rank_call._replace(end_us=max(rank_call.ready_us, end_us_by_step[step]))
            for step, rank_call in last_call_by_step.items()
        ]
        for ready_us, step, end_us in rank_calls if awaits_each_call else waits_of_steps:
            yield (
                rank, ready_us, end_us, "wait", None, "synchronize", "training", step, None, None,
                "estimated",
            )  # fmt: skip


def _awaits_each_call(calls: list[_Call], calls_of_ranks: Iterable[list[_RankCall]]) -> bool:
    """Return True if ranks go on soon after each operation ends, however late the last rank was.

    They do if pauses between operations of a step are short, compared with the delays of the last rank,
    and no rank is ready for an operation before the previous one has ended.
    """
    pauses_us = []  # the median pause of each rank
    for rank_calls in calls_of_ranks:
        pairs = [(a, b) for a, b in pairwise(sorted(rank_calls)) if a.step == b.step]
        if not pairs or any(second.ready_us < first.end_us for first, second in pairs):
            return False
        pauses_us.append(median(second.ready_us - first.end_us for first, second in pairs))
    ready_us_of_calls = [call.ready_us_by_rank.values() for call in calls if call.ready_us_by_rank]
    # Of the last rank to be ready, one a call.
    delays_us = [max(ready_us) - min(ready_us) for ready_us in ready_us_of_calls]
    are_known = bool(delays_us and pauses_us)
    return are_known and min(pauses_us) < MAX_PAUSE_AFTER_WAIT * median(delays_us)


def _tensor_bytes(args: dict[str, Any]) -> int | None:
    """Return the number of bytes of a tensor, by its type and its shape, ``[3, 224, 224]``."""
    bytes_per_item, shape = _ITEM_BYTES.get(str(args.get("dtype")).casefold()), args.get("shape")
    if bytes_per_item is None or not isinstance(shape, str):
        return None
    dimensions = (int(number[:12]) for number in _DIMENSION.findall(as_text(shape)))
    tensor_bytes = bytes_per_item * math.prod(dimensions)
    return tensor_bytes if tensor_bytes < MOST_NS else None  # what a column of 64 bits holds


class HorovodReader(FilesReader[Timeline]):
    """Reads a file that `HOROVOD_TIMELINE` named."""

    name = "timeline of Horovod"
    advice_if_cut = "Let the program end by itself, so that Horovod closes its file."

    def is_format(self, file: Path) -> bool:
        """Return True if a file begins as Horovod's timelines do."""
        return _MARK.search(read_first_bytes(file)) is not None

    def read_file(self, file: Path) -> Timeline:
        """Read the calls of a file, as `FilesReader.read_file` says."""
        timeline = Timeline(has_rank_column=True)
        for event in timeline.read_events(EventStream(file), row_count=timeline.calls.__len__):
            timeline.apply_event(event)
        return timeline.set_rows()

    def list_facts(self, run: FileSet[Timeline]) -> Iterator[tuple[str, str]]:
        """Yield the shares of activities."""
        for timeline in run.file_by_name.values():
            total_us = timeline.us_by_activity.total()
            if total_us:
                activities = timeline.us_by_activity.most_common(MAX_ACTIVITIES_LISTED)
                shares = ", ".join(f"{name} {us / total_us:.0%}" for name, us in activities)
                yield "operations of rank 0", f"of their activities' time {shares}"

    def list_gaps(self, run: FileSet[Timeline]) -> Iterator[Gap]:
        """Yield what operations do not say of ranks."""
        for timeline in run.file_by_name.values():
            rank_count = len(timeline.ranks)
            if timeline.unmarked_count:
                yield Gap(
                    f"{timeline.unmarked_count:,} of {len(timeline.calls):,} operations do not say when "
                    f"{f'the other of {rank_count:,} ranks' if rank_count > 1 else 'other ranks'} were "
                    "ready, as Horovod knew them from the step before",
                    "which rank others wait for in them",
                    "Run with HOROVOD_CACHE_CAPACITY=0, and the timeline has a mark for each rank.",
                )
        yield Gap(
            "what ranks do between reductions is not recorded",
            "in which phase a rank is slow",
            "Record the run with 'tracelens record'.",
        )
        yield Gap(
            "waits at the end of a step are taken from the last tensor to the last operation's end",
            "how much of communication is hidden behind the update",
            "Record the run with 'tracelens record'.",
            is_decisive=False,
        )
        yield Gap(
            "rank 0 hears once a cycle which ranks are ready",
            "who is late by less than HOROVOD_CYCLE_TIME (1 ms, if it is not set)",
            "Set HOROVOD_CYCLE_TIME to less.",
            is_decisive=False,
        )
