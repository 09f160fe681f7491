"""Infers what rows of spans seldom hold: threads in flight, step numbers, matching collectives.

Communication on a thread of its own is in flight, and so is what runs on a device's stream. So is
communication that crosses other work of its thread, since no thread does two things at the same time,
and where a table names no threads also what lies within other work, as gradient buckets do: it is moved
to a track of its own.

Steps without a number are counted by step rows.

Messages without a number are counted between each two ranks, if both record equally many.
Calls of different ranks are matched by number (`seq`). Where numbers restart in each step,
step and number together are the number. Without numbers, calls are put together by their order
within communicator, name and step, and only if all ranks make equally many of each: such calls have
the status ``estimated``. Anything else stays unmatched.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.conversion.columns import depths
from tracelens.model.trace import COMMUNICATOR_COLUMNS, THREAD_COLUMNS, Note
from tracelens.readers.base import quoted
from tracelens.readers.spans.rows import fitted
from tracelens.readers.spans.streams import find_streams, level_of_thread
from tracelens.schema.vocabulary import COLLECTIVES, POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMMUNICATION: Final = ("reduction", "ps", "elastic")
_WORK: Final = ("data", "forward", "backprop", "update")
_MOST_THREADS: Final = 2**16 - 1
_THREAD: Final = ("process", "thread")
_FOREVER: Final = 2**62
_MOST_CALLS: Final = 2**32 - 1
WORLD: Final = "world"
# share of an operation: a smaller overlap with other work is the rounding of times [chosen]
MIN_SHARE_TO_CROSS: Final = 0.05
# share of all operations: fewer that cross other work are slips of a clock [chosen]
MIN_SHARE_OF_CROSSING: Final = 0.01
MAX_ENTRIES_LISTED: Final = 8  # threads or communicators in a sentence [policy]
_TWICE: Final = (
    "a rank uses a number twice, so they are not matched and waits in them are unknown: 'seq' must "
    "count a rank's calls."
)
_UNEVEN: Final = (
    "they carry no number and ranks do not make equally many ({uneven}), so they are not matched and "
    "waits in them are unknown: add a column 'seq' that counts each rank's calls."
)
_ORDERED: Final = (
    "they carry no number and are matched by their order within name and step, as all ranks make "
    "equally many; a column 'seq' would make that certain."
)


def lay_out_threads(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, list[Note]]:
    """Number threads, find those in flight, and add `depth`; return rows, threads and notes."""
    has_threads = "thread" in frame.columns
    frame, names = _number_threads(find_streams(frame))
    kinds = frame["kind"].unique().cast(pl.String)
    crossing = [
        kind
        for kind in _COMMUNICATION
        if kind in kinds and _crosses_work(frame, kind, has_threads=has_threads)
    ]
    is_moved = pl.col("kind").cast(pl.String).is_in(crossing) & (pl.col("role") == "worker")
    track = pl.col("thread").max().over("process") + 1
    frame = frame.with_columns(thread=pl.when(is_moved).then(track).otherwise("thread"))
    threads = _thread_table(frame, names)
    notes = [
        *_overlap_notes(crossing, has_threads=has_threads),
        *_thread_notes(frame, threads),
    ]
    frame = frame.with_columns(pl.col("thread").cast(pl.UInt16))
    return frame.with_columns(depth=_depths(frame)), threads, notes


def _number_threads(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Turn threads into small numbers: their own where they have such, else in order of time.

    Returns:
        The rows, and a table `process`, `thread`, `thread_name`, empty without threads.
    """
    if "thread" not in frame.columns:
        schema = {"process": pl.Int32, "thread": pl.Int64, "thread_name": pl.String}
        return frame.with_columns(thread=pl.lit(0, pl.Int64)), pl.DataFrame(schema=schema)
    threads = frame.group_by("process", label=pl.col("thread"), maintain_order=True).agg(
        first_ns=pl.col("start_ns").min()
    )
    number = pl.col("label").cast(pl.String).cast(pl.Int64, strict=False)
    are_small = number.is_between(0, _MOST_THREADS - 1).fill_null(value=False).all()
    threads = threads.sort("process", "first_ns").select(
        "process",
        "label",
        thread=pl.when(are_small).then(number).otherwise(pl.int_range(pl.len()).over("process")),
    )
    rows = frame.rename({"thread": "label"}).join(
        threads, on=["process", "label"], how="left", nulls_equal=True, maintain_order="left"
    )
    names = threads.select("process", "thread", thread_name=pl.col("label").cast(pl.String))
    return rows.drop("label"), names


def _crosses_work(frame: pl.DataFrame, kind: str, *, has_threads: bool) -> bool:
    """Return True if operations of a kind cross other work of their worker's thread.

    Without threads, being within other work is enough.
    """
    is_operation, start, end = pl.col("is_operation"), pl.col("start_ns"), pl.col("end_ns")
    work_end = pl.when(~is_operation).then(end).cum_max().forward_fill().over(_THREAD)
    next_work = pl.when(~is_operation).then(start).shift(-1).backward_fill().over(_THREAD)
    # The lesser of an end and of none is that end.
    overlap = pl.when(work_end.is_not_null()).then(pl.min_horizontal(work_end, end) - start)
    overlap_before = pl.when(work_end < end).then(overlap) if has_threads else overlap
    share = pl.max_horizontal(overlap_before, end - next_work) / (end - start).clip(lower_bound=1)
    crossing = (
        frame.lazy()
        .filter(pl.col("role") == "worker", pl.col("kind").cast(pl.String).is_in([kind, *_WORK]))
        .select(*_THREAD, start, end.fill_null(_FOREVER), is_operation=pl.col("kind") == kind)
        .sort(*_THREAD, "start_ns", "end_ns", descending=[False, False, False, True])
        .with_columns(crosses=share.fill_null(0) > MIN_SHARE_TO_CROSS)
        .filter("is_operation")
        .select(pl.col("crosses").mean())
    )
    share_crossing = crossing.collect().item()
    return bool(share_crossing is not None and share_crossing > MIN_SHARE_OF_CROSSING)


def _thread_table(frame: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Describe all threads; a worker's streams and those that only communicate are in flight."""
    communicates = pl.col("kind").cast(pl.String).is_in(_COMMUNICATION)
    communicates &= pl.col("role") == "worker"
    levels = frame.group_by(_THREAD).agg(level=level_of_thread(communicates)).sort(_THREAD)
    threads = levels.join(names, on=_THREAD, how="left", maintain_order="left").with_columns(
        in_flight=pl.col("level") > pl.col("level").min().over("process"),
        name=pl.coalesce("thread_name", pl.format("thread {}", "thread")),
    )
    return fitted(threads, THREAD_COLUMNS)


def _depths(frame: pl.DataFrame) -> pl.Series:
    """Count nesting process by process: sorting many short arrays is quicker than one long one."""
    thread = frame["thread"].cast(pl.Int64).to_numpy()
    start_ns, end_ns = frame["start_ns"].to_numpy(), frame["end_ns"].fill_null(_FOREVER).to_numpy()
    nesting = np.zeros(frame.height, np.int64)
    bounds = np.flatnonzero(np.diff(frame["process"].to_numpy(), prepend=-1, append=-1))
    for first, last in pairwise(bounds):
        process = slice(first, last)
        nesting[process] = depths(thread[process], start_ns[process], end_ns[process])
    return pl.Series("depth", np.minimum(nesting, _MOST_THREADS).astype(np.uint16))


def _overlap_notes(crossing: list[str], *, has_threads: bool) -> list[Note]:
    if not crossing:
        return []
    owner = "thread" if has_threads else "rank"
    advice = "give it a thread of its own" if has_threads else "add 'thread'"
    sentence = (
        f"Communication ({', '.join(crossing)}) overlaps other work of its {owner}, so it is taken to "
        f"run beside the code; {advice} to say where it ran."
    )
    return [Note(file="", sentence=sentence, kind="table")]


def _thread_notes(frame: pl.DataFrame, threads: pl.DataFrame) -> list[Note]:
    """Note the kinds of each thread or stream of a worker, if there are several."""
    kinds = (
        frame.filter(pl.col("role") == "worker")
        .group_by("process", "thread", pl.col("kind").cast(pl.String))
        .agg(rows=pl.len(), first_ns=pl.col("start_ns").min())
        .join(threads.with_columns(pl.col("thread").cast(pl.Int64)), on=["process", "thread"])
    )
    if kinds.select(pl.col("thread").n_unique().over("process").max()).item() in {None, 1}:
        return []
    names = (
        kinds.group_by("name", "kind")
        .agg(pl.col("rows").sum(), pl.col("in_flight").all(), pl.col("first_ns").min())
        .sort("rows", "kind", descending=[True, False])
        .group_by("name", maintain_order=True)
        .agg("kind", pl.col("in_flight").all(), pl.col("first_ns").min())
        .sort("first_ns", "name")
        .select("name", "kind", "in_flight")
    )
    listed = ", ".join(
        f"{quoted(name)} ({', '.join(kinds)}{'; beside the code' if in_flight else ''})"
        for name, kinds, in_flight in names.head(MAX_ENTRIES_LISTED).rows()
    )
    hidden = names.height - MAX_ENTRIES_LISTED
    more = f" and {hidden} more" if hidden > 0 else ""
    sentence = f"Recognised as threads and streams of ranks: {listed}{more}."
    return [Note(file="", sentence=sentence, kind="table")]


def number_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill `step` by rows for steps if no row has one; rows are in order of process and time."""
    if "step" in frame.columns and frame["step"].count():
        return frame.with_columns(pl.col("step").fill_null(-1))
    is_step = pl.col("kind") == "step"
    number = is_step.cum_sum().over("process").cast(pl.Int32) - 1
    return frame.with_columns(step=pl.when(is_step).then(number).otherwise(pl.lit(-1, pl.Int32)))


def match_collectives(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Complete `communicator`, `seq` and `status` of the workers' collectives.

    Estimated times without a number have no order that would match them.
    """
    is_call = (
        (pl.col("kind") == "reduction")
        & pl.col("op").cast(pl.String).is_in(COLLECTIVES)
        & (pl.col("role") == "worker")
    )
    frame = _complete_communicators(frame, is_call)
    is_call &= pl.col("seq").is_not_null() | (pl.col("status") != "estimated")
    calls = frame.with_row_index("row").filter(is_call)
    tables = []
    groups_of_problem: dict[str, list[str]] = {}
    for (group,), calls_of_group in calls.group_by("communicator", maintain_order=True):
        numbers, problem = _number_calls(calls_of_group)
        tables.append(numbers)
        groups_of_problem.setdefault(problem, []).append(quoted(str(group)))
    notes = [
        _collective_note(problem, groups)
        for problem, groups in groups_of_problem.items()
        if problem
    ]
    if not tables:
        return frame, notes
    joined = frame.with_row_index("row").join(
        pl.concat(tables), on="row", how="left", maintain_order="left"
    )
    is_estimated = pl.col("estimated") & (pl.col("status") == "closed")
    status = pl.when(is_estimated).then(pl.lit("estimated"))
    return joined.with_columns(
        seq=pl.when(is_call).then("number").otherwise("seq"),
        status=status.otherwise(pl.col("status").cast(pl.String)),
    ).drop("row", "number", "estimated"), notes


def number_messages(frame: pl.DataFrame) -> pl.DataFrame:
    """Count the messages without a number between two ranks, which overtake each other nowhere.

    Only where both record equally many; others stay without one, and are not matched.
    """
    if "peer" not in frame.columns or "seq" not in frame.columns:
        return frame
    op = pl.col("op").cast(pl.String)
    is_message = (
        op.is_in(POINT_TO_POINT)
        & (pl.col("kind") == "reduction")
        & (pl.col("role") == "worker")
        & (pl.col("peer") >= 0)
    )
    if not frame.select((is_message & pl.col("seq").is_null()).any()).item():
        return frame
    pair = ["communicator", *(name for name in ("key",) if name in frame.columns), "from", "to"]
    sends = op == "send"
    messages = (
        frame.with_row_index("row")
        .filter(is_message)
        .with_columns(
            pl.when(sends).then("rank").otherwise("peer").cast(pl.Int64).alias("from"),
            pl.when(sends).then("peer").otherwise("rank").cast(pl.Int64).alias("to"),
            sends=sends,
        )
        .with_columns(
            number=pl.int_range(pl.len()).over(*pair, "sends", order_by="start_ns").cast(pl.Int64),
            is_even=(pl.col("sends").sum() * 2 == pl.len()).over(pair),
            has_no_numbers=pl.col("seq").is_null().all().over(pair),
        )
        .filter("is_even", "has_no_numbers")
        .select("row", "number")
    )
    numbered = frame.with_row_index("row").join(
        messages, on="row", how="left", maintain_order="left"
    )
    return numbered.with_columns(seq=pl.coalesce("seq", "number")).drop("row", "number")


def communicator_table(frame: pl.DataFrame, members: Mapping[str, Sequence[int]]) -> pl.DataFrame:
    """Return the communicators that collectives name, with the ranks that call them.

    And with `members`, by communicator, even those without a row.
    """
    member_table = pl.DataFrame(
        {"name": list(members), "ranks": [list(ranks) for ranks in members.values()]},
        schema={"name": pl.String(), "ranks": pl.List(pl.Int32())},
    )
    callers = (
        frame.filter((pl.col("role") == "worker") & pl.col("communicator").is_not_null())
        .group_by("communicator")
        .agg(callers=pl.col("rank").unique().cast(pl.Int32))
        .with_columns(name=pl.col("communicator").cast(pl.String))
    )
    all_ranks = pl.col("callers").list.set_union(pl.col("ranks").fill_null([])).list.sort()
    table = callers.join(member_table, on="name", how="left").with_columns(ranks=all_ranks)
    return fitted(table.sort("name"), COMMUNICATOR_COLUMNS)


def _complete_communicators(frame: pl.DataFrame, is_call: pl.Expr) -> pl.DataFrame:
    """Assign to collectives without a communicator that of all ranks."""
    optional = {"communicator": pl.Categorical(), "seq": pl.Int64()}
    frame = frame.with_columns(
        pl.lit(None, dtype).alias(name)
        for name, dtype in optional.items()
        if name not in frame.columns
    )
    world = pl.when(is_call).then(pl.lit(WORLD, pl.Categorical()))
    return frame.with_columns(communicator=pl.coalesce("communicator", world))


def _number_calls(calls: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return `row`, `number` and `estimated` of the calls of one communicator, and a problem or ""."""
    numbered = calls.filter(pl.col("seq").is_not_null())
    if numbered.is_empty():
        uneven = _uneven(calls)
        if uneven:
            return _numbers(calls, pl.lit(None)), _UNEVEN.format(uneven=uneven)
        turn = pl.int_range(pl.len()).over("process", "name", "step")
        ordered = _dense(calls.with_columns(turn=turn), "step", "name", "turn")
        return ordered.with_columns(estimated=pl.lit(value=True)), _ORDERED
    if not _repeats(numbered, "seq"):
        is_large = numbered.select((pl.col("seq") >= _MOST_CALLS).any()).item()
        return _dense(calls, "seq") if is_large else _numbers(calls, pl.col("seq")), ""
    if not _repeats(numbered, "step", "seq"):
        return _dense(calls, "step", "seq"), ""
    return _numbers(calls, pl.lit(None)), _TWICE


def _repeats(calls: pl.DataFrame, *key: str) -> bool:
    return bool(calls.select(pl.struct("process", *key).is_duplicated().any()).item())


def _uneven(calls: pl.DataFrame) -> str:
    """Name the first call that ranks make different numbers of; empty without one."""
    ranks = calls["process"].n_unique()
    counts = (
        calls.group_by("name", "step", "process", maintain_order=True)
        .len()
        .group_by("name", "step", maintain_order=True)
        .agg(least=pl.col("len").min(), most=pl.col("len").max(), ranks=pl.len())
        .filter((pl.col("least") < pl.col("most")) | (pl.col("ranks") < ranks))
    )
    if counts.is_empty():
        return ""
    uneven_call = counts.row(0, named=True)
    smallest = 0 if uneven_call["ranks"] < ranks else uneven_call["least"]
    where = f" in step {uneven_call['step']}" if uneven_call["step"] >= 0 else ""
    return f"{smallest} to {uneven_call['most']} of {quoted(uneven_call['name'])}{where}"


def _dense(calls: pl.DataFrame, *key: str) -> pl.DataFrame:
    """Assign one number to calls with equal keys, in the order of the first rank that makes them."""
    order = (
        calls.sort("process", "start_ns")
        .unique(key, keep="first", maintain_order=True)
        .sort("step", "process", "start_ns", maintain_order=True)
        .with_row_index("number")
    )
    joined = calls.join(order.select(*key, "number"), on=key, how="left", nulls_equal=True)
    has_key = pl.col("seq").is_not_null() if "seq" in key else pl.lit(value=True)
    return _numbers(joined, pl.when(has_key).then("number"))


def _numbers(calls: pl.DataFrame, number: pl.Expr) -> pl.DataFrame:
    return calls.select("row", number=number.cast(pl.Int64), estimated=pl.lit(value=False))


def _collective_note(problem: str, groups: list[str]) -> Note:
    more = " and more" if len(groups) > MAX_ENTRIES_LISTED else ""
    listed = ", ".join(groups[:MAX_ENTRIES_LISTED]) + more
    return Note(file="", sentence=f"Collectives of {listed}: {problem}", kind="table")
