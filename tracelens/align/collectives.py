"""Matches collective calls across ranks: arrivals, the last rank to arrive, and each rank's wait.

Calls belong together if communicator and sequence number are equal; nothing is guessed from times.
Where the calls of one number differ (another op, another bucket), the ranks have lost step with each
other: from there on nothing of that communicator is matched, and a note says where it began. Numbers
that a reader concluded from an order accuse nobody: there the note says that the order does not match.
"""

from __future__ import annotations

from dataclasses import fields, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import polars as pl

from tracelens.distil.outline import list_outlines
from tracelens.model.calls import NEVER, CallFacts, CallGrid, join_columns, repeats_one_column
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.outline import NO_CALLS
from tracelens.model.trace import Note
from tracelens.schema.vocabulary import COLLECTIVES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracelens.arrays import Array, Flags, Indices, Int32s, Ints
    from tracelens.model.outline import CallRows
    from tracelens.model.trace import Trace

_ESTIMATED: Final = STATUSES.index("estimated")
MAX_SHARE_OF_IMPOSSIBLE_CALLS: Final = 0.01  # completion may be noted late, in another thread
MAX_RANKS_NAMED: Final = 8
_ABSENT: Final = {  # what stands in a grid for a call that a process did not make
    **dict.fromkeys(("op", "step", "nbytes", "thread", "status"), -1),
    **dict.fromkeys(("bucket", "peer"), NULL),
    **dict.fromkeys(("start_ns", "end_ns"), NEVER),
}
_Call: TypeAlias = "dict[str, Array]"  # the calls of one process: `CallFacts` by name, by number


def gather_calls(trace: Trace) -> Trace:
    """Fill `calls` with those of the workers' main processes, on their own clocks, not yet matched."""
    outlines = list_outlines(trace)
    calls_by_uid: dict[str, dict[tuple[int, int], _Call]] = {}
    workers = trace.workers.select("process", "rank").sort("process")
    for process, rank in workers.iter_rows():
        if process in outlines:
            for uid, calls in _split_by_communicator(outlines[process].calls):
                calls_by_uid.setdefault(uid, {})[process, rank] = calls
    grids = tuple(to_grid(uid, calls_by_uid.pop(uid)) for uid in sorted(calls_by_uid))
    # The grids hold the calls from here on.
    emptied = {process: replace(outline, calls=NO_CALLS) for process, outline in outlines.items()}
    return trace.with_(calls=grids, outlines=emptied)


def _split_by_communicator(call_rows: CallRows) -> Iterator[tuple[str, _Call]]:
    """Yield each communicator of a process with its calls, each number once, by number."""
    facts: _Call = {field.name: getattr(call_rows, field.name) for field in fields(CallFacts)}
    facts["op"] = _recode(call_rows.ops, call_rows.op, COLLECTIVES)
    facts["status"] = _recode(call_rows.statuses, call_rows.status, STATUSES)
    for uid_code in np.unique(call_rows.communicator).tolist():
        uid = call_rows.communicator_uids[uid_code]
        selected = np.flatnonzero(call_rows.communicator == uid_code)
        seq = call_rows.seq[selected]
        if np.any(np.diff(seq) <= 0):
            order = np.lexsort((call_rows.start_ns[selected], seq))
            selected = selected[order[np.diff(seq[order], prepend=-1) > 0]]
        elif len(selected) == len(call_rows.seq):  # arrays stay those that processes share
            yield uid, facts
            continue
        yield uid, {name: values[selected] for name, values in facts.items()}


def _recode(words: Sequence[str], codes: Array, vocabulary: Sequence[str]) -> Array:
    """Turn codes, [row], indices of a file's `words` (-1 = none), into indices of a vocabulary.

    Codes that would not change are returned themselves, so that processes go on sharing them.
    """
    code_by_word = {word: code for code, word in enumerate(vocabulary)}
    new_codes = np.array([*(code_by_word.get(word, -1) for word in words), -1], np.int8)
    if np.array_equal(new_codes[:-1], np.arange(len(words))):
        return codes
    recoded = new_codes[codes]
    return codes if np.array_equal(recoded, codes) else recoded


def to_grid(uid: str, calls_by_member: Mapping[tuple[int, int], dict[str, Array]]) -> CallGrid:
    """Put the calls of a communicator side by side, a column for each member (process, rank).

    `calls_by_member` are columns by name, [call of this member].
    """
    calls = [*calls_by_member.values()]
    seq = calls[0]["seq"]
    is_whole = all(np.array_equal(seq, member_calls["seq"]) for member_calls in calls)
    if not is_whole:
        seq = np.unique(np.concatenate([member_calls["seq"] for member_calls in calls]))
        calls = [_expand_calls(member_calls, seq) for member_calls in calls]
    cells = {name: join_columns([member_calls[name] for member_calls in calls]) for name in _ABSENT}
    for name in ("start_ns", "end_ns"):
        cells[name] = np.asfortranarray(cells[name])
    processes, ranks = map(np.array, zip(*calls_by_member, strict=True))
    return CallGrid(
        communicator_uid=uid,
        processes=processes,
        ranks=ranks,
        seq=seq,
        is_whole=is_whole,
        last_arrival_ns=np.broadcast_to(np.int64(NEVER), len(seq)),
        last_rank_of_call=np.broadcast_to(np.int32(NULL), len(seq)),
        expected_rank_count=np.broadcast_to(np.int32(0), len(seq)),
        **cells,
    )


def _expand_calls(calls: _Call, seq: Ints) -> _Call:
    """Return the columns of a process's calls for all call numbers `seq`, [call].

    `calls` are columns by name, for the calls that it made; for all others they get the value in
    `_ABSENT`.
    """
    indices = np.searchsorted(seq, calls["seq"])
    columns = {}
    for name, absent in _ABSENT.items():
        columns[name] = np.full(len(seq), absent, calls[name].dtype)
        columns[name][indices] = calls[name]
    return columns


def match_calls(trace: Trace) -> Trace:
    """Fill in who came last to each call, and when; note desynchronised communicators."""
    trace = trace if trace.calls else gather_calls(trace)
    recorded_ranks = _fully_recorded_ranks(trace)
    communicators = trace.communicators.unique("communicator", keep="first", maintain_order=True)
    members = dict(communicators.select(pl.col("communicator").cast(pl.String), "ranks").rows())
    pairs = [
        _match_grid(grid, members.get(grid.communicator_uid), recorded_ranks, trace)
        for grid in trace.calls
    ]
    desyncs = sorted((desync for _, desync in pairs if desync), key=itemgetter(0))
    notes = [note for _, note in desyncs]
    calls = tuple(grid for grid, _ in pairs)
    if not trace.is_snapshot:  # else the ends of calls may be unknown, and waits are not told
        notes += _note_impossible(calls, trace.uncertainty_ns)
    return trace.with_(calls=calls, notes=(*trace.notes, *notes))


def _fully_recorded_ranks(trace: Trace) -> frozenset[int]:
    cut_files = [note.file for note in trace.notes if note.kind == "truncated"]
    return frozenset(trace.workers.filter(~pl.col("file").is_in(cut_files))["rank"])


def _match_grid(
    grid: CallGrid, members: list[int] | None, recorded_ranks: frozenset[int], trace: Trace
) -> tuple[CallGrid, tuple[int, Note] | None]:
    """Match the calls of one communicator; `members` are its ranks, where they are known.

    Return the grid with who came last and when, and, if its ranks lost step with each other, the number
    of the call and a note. `recorded_ranks` are the ranks whose recordings are complete.
    """
    latest_column = np.zeros(grid.call_count, np.intp)
    for call_range, block in grid.split_into_blocks():
        latest_column[call_range] = block.start_ns.argmax(axis=1)
    last_ns = grid.start_ns[np.arange(grid.call_count), latest_column]
    unfinished = np.flatnonzero(~grid.is_completed.any(axis=1))
    absent_rank = _find_absent(grid, unfinished, members, recorded_ranks)
    expected, has_other_ranks = grid.arrival_counts, np.zeros(grid.call_count, np.bool_)
    if members is not None:
        expected = np.full(grid.call_count, len(members), np.int32)
        has_other_ranks = np.asarray((grid.is_made & ~np.isin(grid.ranks, members)).any(axis=1))
    differs_in_bytes = _vary_in_bytes(grid, trace.ops_of_equal_bytes)
    differs_in_kind = _vary_in_kind(grid) | has_other_ranks
    desync_seq = grid.seq[differs_in_kind | differs_in_bytes].min(initial=FOREVER)
    is_lost = grid.seq >= grid.seq[differs_in_kind].min(initial=FOREVER)
    is_known = ~is_lost & ~differs_in_bytes
    # Who came last is not known where ranks were left out, or clocks are not tied to each other.
    is_timed = grid.communicator_uid not in trace.partial_communicators and _share_clock(
        grid, trace
    )
    latest_rank = grid.ranks[latest_column] if is_timed else NULL
    last_rank = np.where(absent_rank != NULL, absent_rank, latest_rank)
    is_complete = is_known & (absent_rank == NULL) & is_timed
    matched_grid = replace(
        grid,
        last_arrival_ns=np.where(is_complete, last_ns, NEVER),
        last_rank_of_call=np.where(is_known, last_rank, NULL).astype(np.int32),
        expected_rank_count=expected.astype(np.int32),
    )
    if desync_seq == FOREVER:
        return matched_grid, None
    return matched_grid, (int(desync_seq), _note_desync(grid, int(desync_seq), trace))


def find_mismatched(grid: CallGrid, equal_bytes: Sequence[str]) -> Flags:
    """Find the calls in which ranks differ in operation, in bucket, or in `equal_bytes`, [call]."""
    return _vary_in_kind(grid) | _vary_in_bytes(grid, equal_bytes)


def _vary_in_kind(grid: CallGrid) -> Flags:
    return grid.find_varying("op", missing=-1) | grid.find_varying("bucket", missing=NULL)


def _vary_in_bytes(grid: CallGrid, equal_bytes: Sequence[str]) -> Flags:
    if repeats_one_column(grid.nbytes):
        return np.zeros(grid.call_count, np.bool_)
    is_equal = np.isin(grid.op, [COLLECTIVES.index(op) for op in equal_bytes])
    return replace(grid, nbytes=np.where(is_equal, grid.nbytes, -1)).find_varying(
        "nbytes", missing=-1
    )


def _find_absent(
    grid: CallGrid, unfinished: Indices, members: list[int] | None, recorded_ranks: frozenset[int]
) -> Int32s:
    """Return the first rank that never entered a call, [call]; `NULL` if none, or some rank finished it.

    `unfinished` are the indices of calls that no rank finished.
    """
    absent_rank = np.full(grid.call_count, NULL, np.int32)
    if members is None:
        return absent_rank
    expected = sorted(recorded_ranks & set(members))
    for call in unfinished.tolist():
        entered = set(grid.ranks[grid.is_made[call]].tolist())
        absent_rank[call] = next((rank for rank in expected if rank not in entered), NULL)
    return absent_rank


def _share_clock(grid: CallGrid, trace: Trace) -> bool:
    """Return True if the ranks' clocks are tied to each other."""
    unaligned = {*trace.alignment.untied_clock_domains}
    if not unaligned:
        return True
    domain_by_process = dict(trace.processes.select("process", "clock_domain").iter_rows())
    domains = {domain_by_process.get(process) for process in grid.processes.tolist()}
    return len(domains) < 2 or domains.isdisjoint(unaligned)


def split_by_variant(
    grid: CallGrid, call: int, equal_bytes: Sequence[str]
) -> list[tuple[str, list[int]]]:
    """Return each variant of a call, in words, and its ranks; the one of most ranks comes last.

    Only of operations in `equal_bytes` the size counts.
    """
    ranks_by_variant: dict[str, list[int]] = {}
    for column in np.flatnonzero(grid.is_made[call]).tolist():
        nbytes, bucket = int(grid.nbytes[call, column]), int(grid.bucket[call, column])
        op = COLLECTIVES[grid.op[call, column]]
        size_text = f" of {nbytes} bytes" if nbytes >= 0 and op in equal_bytes else ""
        bucket_text = f" (bucket {bucket})" if bucket != NULL else ""
        variant = f"{op}{size_text}{bucket_text}"
        ranks_by_variant.setdefault(variant, []).append(int(grid.ranks[column]))
    ordered = sorted((len(ranks), variant, ranks) for variant, ranks in ranks_by_variant.items())
    return [(variant, ranks) for _, variant, ranks in ordered]


def _note_desync(grid: CallGrid, seq: int, trace: Trace) -> Note:
    """Note which ranks made which call where they differ first."""
    call = int(np.searchsorted(grid.seq, seq))
    variants = split_by_variant(grid, call, trace.ops_of_equal_bytes)
    variant_texts = [
        f"{text} on rank{'s' if len(ranks) > 1 else ''} {_list_ranks(sorted(ranks))}"
        for text, ranks in variants
    ]
    names = dict(trace.communicators.select(pl.col("communicator").cast(pl.String), "name").rows())
    name = f"communicator '{names.get(grid.communicator_uid, grid.communicator_uid)}'"
    status_codes = np.broadcast_to(grid.status, grid.is_made.shape)[call]
    is_concluded = bool((status_codes[grid.is_made[call]] == _ESTIMATED).all())
    subject = (
        f"The order of calls does not match in {name}"
        if is_concluded
        else f"Ranks lost step in {name}"
    )
    calls = ", but ".join(variant_texts)
    sentence = f"{subject} at call {seq}: {calls}; its waits are unknown from there on."
    kind = "table" if is_concluded else "desync"
    minority = tuple(find_minority([ranks for _, ranks in variants]))
    return Note(file="", sentence=sentence, kind=kind, ranks=minority)


def find_minority(groups: Sequence[Sequence[int]]) -> list[int]:
    """Return the ranks that are not in the largest party, the last one; none if another is as large."""
    *other_groups, largest_group = groups
    is_decided = not other_groups or len(other_groups[-1]) < len(largest_group)
    return sorted(rank for ranks in other_groups for rank in ranks) if is_decided else []


def _note_impossible(calls: Sequence[CallGrid], uncertainty_ns: int) -> list[Note]:
    """Note full collectives left by a rank before the last had entered: clocks or matches are wrong."""
    early_ns = np.concatenate([np.zeros(0, np.int64), *map(_measure_early_exits, calls)])
    wrong_ns = early_ns[early_ns > 3 * uncertainty_ns]
    if len(wrong_ns) <= MAX_SHARE_OF_IMPOSSIBLE_CALLS * len(early_ns):
        return []
    sentence = (
        f"In {len(wrong_ns)} of {len(early_ns)} collectives a rank left before the last had come, by "
        f"up to {wrong_ns.max()} ns, which cannot be: the clocks are aligned worse than "
        "believed, or a rank skipped a call; do not trust waits."
    )
    return [Note(file="", sentence=sentence, kind="clock")]


def _measure_early_exits(grid: CallGrid) -> Ints:
    """Return by how much the first rank left each full call before the last arrived, [call], ns.

    `NEVER` where no rank has left yet.
    """
    full_calls = grid.take_calls(
        np.flatnonzero(grid.is_synchronised & (grid.last_arrival_ns != NEVER))
    )
    ends_ns = full_calls.end_ns
    if not grid.is_whole:
        ends_ns = np.where(ends_ns == NEVER, FOREVER, ends_ns)
    first_exit_ns = ends_ns.min(axis=1)
    return np.where(first_exit_ns == FOREVER, NEVER, full_calls.last_arrival_ns - first_exit_ns)


def _list_ranks(ranks: list[int]) -> str:
    text = ", ".join(str(rank) for rank in ranks[:MAX_RANKS_NAMED])
    unnamed_count = len(ranks) - MAX_RANKS_NAMED
    return f"{text} and {unnamed_count} more" if unnamed_count > 0 else text
