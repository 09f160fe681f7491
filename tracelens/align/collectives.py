"""Matches collective calls across ranks: arrivals, the last rank to arrive, and each rank's wait.

Calls belong together if communicator and sequence number are equal; nothing is guessed from times.
Where the calls of one number differ (another op, another bucket), the ranks have lost step with each
other: from there on nothing of that communicator is matched, and a note says where it began. Numbers
that a reader concluded from an order accuse nobody: there the note says that the order does not match.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.distil.outline import outlined
from tracelens.model.calls import NEVER, CallFacts, CallGrid, is_uniform, uniform
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.outline import NO_CALLS
from tracelens.model.trace import Note
from tracelens.schema.vocabulary import COLLECTIVES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Array, Flags, Indices, Int32s, Ints
    from tracelens.model.outline import CallRows
    from tracelens.model.trace import Trace

_ESTIMATED: Final = STATUSES.index("estimated")
RARE: Final = 0.01  # completion may be noted late, in another thread
_FACTS: Final = ("op", "step", "bucket", "nbytes", "thread", "peer", "status")
_OPS: Final = {word: place for place, word in enumerate(COLLECTIVES)}
_STATUSES: Final = {word: place for place, word in enumerate(STATUSES)}


def gather(trace: Trace) -> Trace:
    """Fill `calls` with those of the workers' main processes, on their own clocks, not yet matched."""
    outlines = outlined(trace)
    ranks = dict(trace.workers.select("process", "rank").sort("process").iter_rows())
    found: dict[str, list[_Column]] = {}
    for process, rank in ranks.items():
        if process in outlines:
            for uid, column in _columns(process, rank, outlines[process].calls):
                found.setdefault(uid, []).append(column)
    calls = tuple(_grid(uid, found.pop(uid)) for uid in sorted(found))
    known = {process: replace(one, calls=NO_CALLS) for process, one in outlines.items()}
    return trace.with_(calls=calls, outlines=known)  # the grids hold them from here on


@dataclass(frozen=True, kw_only=True)
class _Column(CallFacts):
    """The calls of one process in one communicator, each number once, by number."""

    process: int
    rank: int


def _columns(process: int, rank: int, rows: CallRows) -> Iterator[tuple[str, _Column]]:
    """Yield the calls of each communicator of a process."""
    every: dict[str, Array] = {field.name: getattr(rows, field.name) for field in fields(CallFacts)}
    every["op"] = _numbered(rows.ops, rows.op, _OPS)
    every["status"] = _numbered(rows.statuses, rows.status, _STATUSES)
    for number in np.unique(rows.communicator).tolist():
        mine = np.flatnonzero(rows.communicator == number)
        falls = np.any(np.diff(rows.seq[mine]) <= 0)
        if falls:
            order = np.lexsort((rows.start_ns[mine], rows.seq[mine]))
            mine = mine[order[np.diff(rows.seq[mine][order], prepend=-1) > 0]]
        # Arrays that are taken whole stay those that processes share.
        whole = not falls and len(mine) == len(rows.seq)
        found: dict[str, Any] = {name: a if whole else a[mine] for name, a in every.items()}
        yield rows.uids[number], _Column(process=process, rank=rank, **found)


def _numbered(words: Sequence[str], codes: Array, numbers: dict[str, int]) -> Array:
    """Return numbers instead of a file's codes for words; no copy where they are the same."""
    known = np.array([*(numbers.get(word, -1) for word in words), -1], np.int8)
    if np.array_equal(known[:-1], np.arange(len(words))):
        return codes
    found = known[codes]
    return codes if np.array_equal(found, codes) else found


def _grid(uid: str, columns: list[_Column]) -> CallGrid:
    """Put the calls of a communicator side by side."""
    seq = columns[0].seq
    whole = all(np.array_equal(seq, column.seq) for column in columns)
    places: list[Indices | None] = [None] * len(columns)
    if not whole:
        seq = np.unique(np.concatenate([column.seq for column in columns]))
        places = [np.searchsorted(seq, column.seq) for column in columns]
    count = len(seq)

    def cells(name: str, absent: int) -> Array:
        return uniform(
            [
                _spread(getattr(column, name), place, count, absent)
                for column, place in zip(columns, places, strict=True)
            ]
        )

    missing = {"bucket": NULL, "peer": NULL}
    facts = {name: cells(name, missing.get(name, -1)) for name in _FACTS}
    return CallGrid(
        uid=uid,
        processes=np.array([column.process for column in columns]),
        ranks=np.array([column.rank for column in columns]),
        seq=seq,
        start_ns=np.asfortranarray(cells("start_ns", NEVER)),
        end_ns=np.asfortranarray(cells("end_ns", NEVER)),
        whole=whole,
        last_ns=np.broadcast_to(np.int64(NEVER), count),
        last_rank=np.broadcast_to(np.int32(NULL), count),
        expected=np.broadcast_to(np.int32(0), count),
        **facts,
    )


def _spread(values: Array, place: Indices | None, count: int, absent: int) -> Array:
    if place is None:
        return values
    spread = np.full(count, absent, values.dtype)
    spread[place] = values
    return spread


def match(trace: Trace) -> Trace:
    """Fill in who came last to each call, and when; note desynchronised communicators."""
    trace = trace if trace.calls else gather(trace)
    whole = _whole_ranks(trace)
    members = dict(_members(trace))
    done = [_matched(grid, members.get(grid.uid), whole, trace) for grid in trace.calls]
    notes = [note for _, note in sorted((n for _, n in done if n), key=lambda row: row[0])]
    calls = tuple(grid for grid, _ in done)
    if not trace.is_snapshot:  # else the ends of calls may be unknown, and waits are not told
        notes += _impossible(calls, trace.uncertainty_ns)
    return trace.with_(calls=calls, notes=(*trace.notes, *notes))


def _whole_ranks(trace: Trace) -> frozenset[int]:
    """Return the ranks whose whole recording is here."""
    cut = [note.file for note in trace.notes if note.kind == "truncated"]
    return frozenset(trace.workers.filter(~pl.col("file").is_in(cut))["rank"])


def _members(trace: Trace) -> list[tuple[str, list[int]]]:
    named = trace.communicators.unique("communicator", keep="first", maintain_order=True)
    return named.select(pl.col("communicator").cast(pl.String), "ranks").rows()


def _matched(
    grid: CallGrid, members: list[int] | None, whole: frozenset[int], trace: Trace
) -> tuple[CallGrid, tuple[int, Note] | None]:
    """Match the calls of one communicator; `members` are its ranks, where they are known."""
    there = grid.there
    latest = np.zeros(grid.height, np.intp)
    for calls, some in grid.blocks():
        latest[calls] = some.start_ns.argmax(axis=1)
    last = grid.start_ns[np.arange(grid.height), latest]
    finished = grid.completed.any(axis=1)
    expected = grid.arrived if members is None else np.full(grid.height, len(members), np.int32)
    absent = _absent(grid, np.flatnonzero(~finished), members, whole)
    outside = members is not None and (there & ~np.isin(grid.ranks, members)).any(axis=1)
    unequal = _vary_in_bytes(grid, trace.equal_bytes)
    apart = _vary_in_kind(grid) | outside
    first = grid.seq[apart | unequal].min(initial=FOREVER)
    lost = grid.seq >= grid.seq[apart].min(initial=FOREVER)
    known = ~lost & ~unequal
    # Who came last is not known where ranks were left out, or clocks are not tied to each other.
    timed = _timed(grid, trace) if grid.uid not in trace.parted else np.False_
    complete = known & (absent == NULL) & timed
    latest_rank = np.where(timed, grid.ranks[latest], NULL)
    last_rank = np.where(known, np.where(absent != NULL, absent, latest_rank), NULL)
    found = replace(
        grid,
        last_ns=np.where(complete, last, NEVER),
        last_rank=last_rank.astype(np.int32),
        expected=expected.astype(np.int32),
    )
    return found, None if first == FOREVER else (int(first), _desync(grid, int(first), trace))


def find_mismatched(grid: CallGrid, equal_bytes: Sequence[str]) -> Flags:
    """Return in which calls ranks differ in operation, in bucket, or in `equal_bytes`, [call]."""
    return _vary_in_kind(grid) | _vary_in_bytes(grid, equal_bytes)


def _vary_in_kind(grid: CallGrid) -> Flags:
    return grid.varies("op", -1) | grid.varies("bucket", NULL)


def _vary_in_bytes(grid: CallGrid, equal_bytes: Sequence[str]) -> Flags:
    if is_uniform(grid.nbytes):
        return np.zeros(grid.height, np.bool_)
    equal = np.isin(grid.op, [COLLECTIVES.index(op) for op in equal_bytes])
    return replace(grid, nbytes=np.where(equal, grid.nbytes, -1)).varies("nbytes", -1)


def _absent(
    grid: CallGrid, unfinished: Indices, members: list[int] | None, whole: frozenset[int]
) -> Int32s:
    """Return for each call that no rank finished the first rank that never entered it, else `NULL`."""
    found = np.full(grid.height, NULL, np.int32)
    if members is None:
        return found
    expected = sorted(whole & set(members))
    for call in unfinished.tolist():
        entered = set(grid.ranks[grid.there[call]].tolist())
        found[call] = next((rank for rank in expected if rank not in entered), NULL)
    return found


def _timed(grid: CallGrid, trace: Trace) -> Flags | np.bool_ | bool:
    """Return whether the ranks' clocks are tied to each other."""
    unaligned = trace.alignment.unaligned
    if not unaligned:
        return True
    domain = dict(trace.processes.select("process", "clock_domain").iter_rows())
    mine = {domain.get(process) for process in grid.processes.tolist()}
    return len(mine) < 2 or not mine & set(unaligned)


def split_by_variant(
    grid: CallGrid, call: int, equal_bytes: Sequence[str]
) -> list[tuple[str, list[int]]]:
    """Return what ranks made of a call, and which ranks did so; what most of them made is the last.

    Sizes are told of the operations that have `equal_bytes`.
    """
    variants_of: dict[str, list[int]] = {}
    for column in np.flatnonzero(grid.there[call]).tolist():
        nbytes, bucket = int(grid.nbytes[call, column]), int(grid.bucket[call, column])
        op = COLLECTIVES[grid.op[call, column]]
        size = f" of {nbytes} bytes" if nbytes >= 0 and op in equal_bytes else ""
        part = f" (bucket {bucket})" if bucket != NULL else ""
        text = f"{op}{size}{part}"
        variants_of.setdefault(text, []).append(int(grid.ranks[column]))
    return sorted(variants_of.items(), key=lambda item: (len(item[1]), item[0]))


def _desync(grid: CallGrid, first: int, trace: Trace) -> Note:
    """Return a note on which ranks made which call where they differ first."""
    call = int(np.searchsorted(grid.seq, first))
    variants = split_by_variant(grid, call, trace.equal_bytes)
    parts = [f"{text} on ranks {_ranks(sorted(ranks))}" for text, ranks in variants]
    names = dict(trace.communicators.select(pl.col("communicator").cast(pl.String), "name").rows())
    name = f"communicator '{names.get(grid.uid, grid.uid)}'"
    status = np.broadcast_to(grid.status, grid.there.shape)[call]
    is_concluded = bool((status[grid.there[call]] == _ESTIMATED).all())
    what = (
        f"The order of calls does not match in {name}"
        if is_concluded
        else f"Ranks lost step in {name}"
    )
    sentence = (
        f"{what} at call {first}: {', but '.join(parts)}; its waits are unknown from there on."
    )
    kind = "table" if is_concluded else "desync"
    return Note("", sentence, kind, tuple(find_minority([ranks for _, ranks in variants])))


def find_minority(parties: Sequence[Sequence[int]]) -> list[int]:
    """Return the ranks that are not in the largest party, the last one; none if another is as large."""
    *others, most = parties
    is_decided = not others or len(others[-1]) < len(most)
    return sorted(rank for ranks in others for rank in ranks) if is_decided else []


def _impossible(calls: Sequence[CallGrid], uncertainty_ns: int) -> list[Note]:
    """Note full collectives left by a rank before the last had entered: clocks or matches are wrong."""
    early = np.concatenate([np.zeros(0, np.int64), *(_left_early(grid) for grid in calls)])
    worst = early[early > 3 * uncertainty_ns]
    if len(worst) <= RARE * len(early):
        return []
    sentence = (
        f"In {len(worst)} of {len(early)} collectives a rank left before the last had come, by "
        f"up to {worst.max()} ns, which cannot be: the clocks are aligned worse than "
        "believed, or a rank skipped a call; do not trust waits."
    )
    return [Note(file="", sentence=sentence, kind="clock")]


def _left_early(grid: CallGrid) -> Ints:
    """Return by how much the first rank left each full call before the last had come."""
    full = grid.taken(np.flatnonzero(grid.is_full & (grid.last_ns != NEVER)))
    ends = full.end_ns
    first = ends.min(axis=1) if grid.whole else np.where(ends == NEVER, FOREVER, ends).min(axis=1)
    return np.where(first == FOREVER, NEVER, full.last_ns - first)


def _ranks(ranks: list[int], shown: int = 8) -> str:
    text = ", ".join(str(rank) for rank in ranks[:shown])
    return text if len(ranks) <= shown else f"{text} and {len(ranks) - shown} more"
