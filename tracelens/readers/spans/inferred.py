"""Infers what rows of spans seldom hold: threads in flight, step numbers, matching collectives.

Communication on a thread of its own is in flight, and so is what runs on a device's stream. So is
communication that crosses other work of its thread, since no thread does two things at the same time:
it is moved to a track of its own.

Calls of different ranks are matched by number (`seq`). Without numbers, they are put together by their
order, with the status ``estimated``, and only if all ranks make equally many of each.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.conversion.columns import count_depths
from tracelens.model.trace import COMMUNICATOR_COLUMNS, THREAD_COLUMNS, Note
from tracelens.readers.base import quoted
from tracelens.readers.spans.rows import fit_columns
from tracelens.readers.spans.streams import find_level_of_thread, find_streams
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


def lay_out_threads(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, list[Note]]:
    """Number threads, find those in flight, and add `depth`.

    Communication that crosses other work moves to an extra thread.
    Returns the spans, the thread table with one row per process and thread, and notes.
    """
    has_threads = "thread" in spans.columns
    spans, thread_names = _number_threads(find_streams(spans))
    present_kinds = spans["kind"].unique().cast(pl.String)
    crossing_kinds = [
        kind
        for kind in _COMMUNICATION
        if kind in present_kinds and _crosses_work(spans, kind, has_threads=has_threads)
    ]
    is_crossing = pl.col("kind").cast(pl.String).is_in(crossing_kinds)
    is_crossing &= pl.col("role") == "worker"
    extra_thread = pl.col("thread").max().over("process") + 1
    spans = spans.with_columns(thread=pl.when(is_crossing).then(extra_thread).otherwise("thread"))
    threads = _describe_threads(spans, thread_names)
    notes = _note_overlap(crossing_kinds, has_threads=has_threads) + _note_threads(spans, threads)
    spans = spans.with_columns(pl.col("thread").cast(pl.UInt16))
    return spans.with_columns(depth=_count_depths(spans)), threads, notes


def _number_threads(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Turn thread labels into small numbers: the labels if all are such, else in order of time.

    Returns the spans, and a table `process`, `thread`, `thread_name`, empty without threads.
    """
    if "thread" not in spans.columns:
        name_schema = {"process": pl.Int32, "thread": pl.Int64, "thread_name": pl.String}
        return spans.with_columns(thread=pl.lit(0, pl.Int64)), pl.DataFrame(schema=name_schema)
    labels = spans.group_by("process", label=pl.col("thread"), maintain_order=True).agg(
        first_ns=pl.col("start_ns").min()
    )
    label_number = pl.col("label").cast(pl.String).cast(pl.Int64, strict=False)
    are_small_numbers = label_number.is_between(0, _MOST_THREADS - 1).fill_null(value=False).all()
    turn = pl.int_range(pl.len()).over("process")
    number = pl.when(are_small_numbers).then(label_number).otherwise(turn)
    threads = labels.sort("process", "first_ns").select("process", "label", thread=number)
    numbered_spans = spans.rename({"thread": "label"}).join(
        threads, on=["process", "label"], how="left", nulls_equal=True, maintain_order="left"
    )
    thread_names = threads.select("process", "thread", thread_name=pl.col("label").cast(pl.String))
    return numbered_spans.drop("label"), thread_names


def _crosses_work(spans: pl.DataFrame, kind: str, *, has_threads: bool) -> bool:
    """Return True if operations of `kind` overlap earlier or later `_WORK` of their worker's thread.

    A nested operation lies within the work around it, and crosses none. Unless the table says which
    thread spans are of (`has_threads`), being within other work is enough.
    """
    is_operation, start_ns, end_ns = pl.col("is_operation"), pl.col("start_ns"), pl.col("end_ns")
    is_work = ~is_operation
    work_end_ns = pl.when(is_work).then(end_ns).cum_max().forward_fill().over(_THREAD)
    next_work_ns = pl.when(is_work).then(start_ns).shift(-1).backward_fill().over(_THREAD)
    # `min_horizontal` ignores the null end of an open span.
    common_end_ns = pl.min_horizontal(work_end_ns, end_ns)
    overlap_ns = pl.when(work_end_ns.is_not_null()).then(common_end_ns - start_ns)
    if has_threads:
        overlap_ns = pl.when(work_end_ns < end_ns).then(overlap_ns)
    duration_ns = (end_ns - start_ns).clip(lower_bound=1)
    overlap_share = pl.max_horizontal(overlap_ns, end_ns - next_work_ns) / duration_ns
    share_query = (
        spans.lazy()
        .filter(pl.col("role") == "worker", pl.col("kind").cast(pl.String).is_in([kind, *_WORK]))
        .select(*_THREAD, start_ns, end_ns.fill_null(_FOREVER), is_operation=pl.col("kind") == kind)
        .sort(*_THREAD, "start_ns", "end_ns", descending=[False, False, False, True])
        .with_columns(crosses=overlap_share.fill_null(0) > MIN_SHARE_TO_CROSS)
        .filter("is_operation")
        .select(pl.col("crosses").mean())
    )
    crossing_share = share_query.collect().item()
    return bool(crossing_share is not None and crossing_share > MIN_SHARE_OF_CROSSING)


def _describe_threads(spans: pl.DataFrame, thread_names: pl.DataFrame) -> pl.DataFrame:
    """Return the thread table: one row per process and thread, with its name and `in_flight`.

    A worker's streams, and its threads that only communicate, are in flight: their `level` is above the
    lowest of their process.
    """
    communicates = pl.col("kind").cast(pl.String).is_in(_COMMUNICATION)
    communicates &= pl.col("role") == "worker"
    thread_levels = (
        spans.group_by(_THREAD).agg(level=find_level_of_thread(communicates)).sort(_THREAD)
    )
    threads = thread_levels.join(thread_names, on=_THREAD, how="left", maintain_order="left")
    threads = threads.with_columns(
        in_flight=pl.col("level") > pl.col("level").min().over("process"),
        name=pl.coalesce("thread_name", pl.format("thread {}", "thread")),
    )
    return fit_columns(threads, THREAD_COLUMNS)


def _count_depths(spans: pl.DataFrame) -> pl.Series:
    """Return the number of spans that enclose each span on its thread; `spans` are sorted by process.

    Counted process by process: sorting many short arrays is quicker than sorting one long one.
    """
    threads = spans["thread"].cast(pl.Int64).to_numpy()
    start_ns, end_ns = spans["start_ns"].to_numpy(), spans["end_ns"].fill_null(_FOREVER).to_numpy()
    depth = np.zeros(spans.height, np.int64)
    process_bounds = np.flatnonzero(np.diff(spans["process"].to_numpy(), prepend=-1, append=-1))
    for first, last in pairwise(process_bounds):
        rows = slice(first, last)
        depth[rows] = count_depths(threads[rows], start_ns[rows], end_ns[rows])
    return pl.Series("depth", np.minimum(depth, _MOST_THREADS).astype(np.uint16))


def _note_overlap(crossing_kinds: list[str], *, has_threads: bool) -> list[Note]:
    """Note the kinds of communication that overlap other work; no note without any.

    `has_threads`: the table says which thread spans are of.
    """
    if not crossing_kinds:
        return []
    owner = "thread" if has_threads else "rank"
    advice = "give it a thread of its own" if has_threads else "add 'thread'"
    sentence = (
        f"Communication ({', '.join(crossing_kinds)}) overlaps other work of its {owner}, so it is "
        f"taken to run beside the code; {advice} to say where it ran."
    )
    return [Note(file="", sentence=sentence, kind="table")]


def _note_threads(spans: pl.DataFrame, threads: pl.DataFrame) -> list[Note]:
    """Note the kinds of span on each thread or stream of workers; no note if each has one thread.

    `threads_and_kinds`: one row per thread and kind; `named_threads`: one row per name of a thread.
    """
    threads_and_kinds = (
        spans.filter(pl.col("role") == "worker")
        .group_by("process", "thread", pl.col("kind").cast(pl.String))
        .agg(rows=pl.len(), first_ns=pl.col("start_ns").min())
        .join(threads.with_columns(pl.col("thread").cast(pl.Int64)), on=["process", "thread"])
    )
    thread_counts = threads_and_kinds.select(pl.col("thread").n_unique().over("process"))
    if thread_counts["thread"].max() in {None, 1}:
        return []
    named_threads = (
        threads_and_kinds.group_by("name", "kind")
        .agg(pl.col("rows").sum(), pl.col("in_flight").all(), pl.col("first_ns").min())
        .sort("rows", "kind", descending=[True, False])
        .group_by("name", maintain_order=True)
        .agg("kind", pl.col("in_flight").all(), pl.col("first_ns").min())
        .sort("first_ns", "name")
        .select("name", "kind", "in_flight")
    )
    listed = ", ".join(
        f"{quoted(name)} ({', '.join(kinds)}{'; beside the code' if in_flight else ''})"
        for name, kinds, in_flight in named_threads.head(MAX_ENTRIES_LISTED).rows()
    )
    unlisted_count = named_threads.height - MAX_ENTRIES_LISTED
    unlisted = f" and {unlisted_count} more" if unlisted_count > 0 else ""
    sentence = f"Recognised as threads and streams of ranks: {listed}{unlisted}."
    return [Note(file="", sentence=sentence, kind="table")]


def number_steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Fill `step`: if no span has one, number the spans of kind `step` from 0 in each process.

    Other spans get -1. `spans` are in order of process and time.
    """
    if "step" in spans.columns and spans["step"].count():
        return spans.with_columns(pl.col("step").fill_null(-1))
    is_step = pl.col("kind") == "step"
    step_index = is_step.cum_sum().over("process").cast(pl.Int32) - 1
    no_step = pl.lit(-1, pl.Int32)
    return spans.with_columns(step=pl.when(is_step).then(step_index).otherwise(no_step))


def match_collectives(spans: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Complete `communicator`, `seq` and `status` of the workers' collectives; return spans and notes.

    `seq` is the number of a call in its communicator: calls of ranks with equal numbers match. Calls
    with estimated times and without a number cannot be matched. Notes tell which communicators cannot.
    """
    is_call = (pl.col("kind") == "reduction") & (pl.col("role") == "worker")
    is_call &= pl.col("op").cast(pl.String).is_in(COLLECTIVES)
    spans = _complete_communicators(spans, is_call)
    is_call &= pl.col("seq").is_not_null() | (pl.col("status") != "estimated")
    calls = spans.with_row_index("row").filter(is_call)
    number_tables = []
    communicators_by_problem: dict[str, list[str]] = {}
    for (communicator,), calls_of_communicator in calls.group_by(
        "communicator", maintain_order=True
    ):
        numbers, problem = _number_calls(calls_of_communicator)
        number_tables.append(numbers)
        communicators_by_problem.setdefault(problem, []).append(quoted(str(communicator)))
    communicators_by_problem.pop("", None)  # these match
    notes = [_note_collectives(*entry) for entry in communicators_by_problem.items()]
    if not number_tables:
        return spans, notes
    spans = spans.with_row_index("row")
    spans = spans.join(pl.concat(number_tables), on="row", how="left", maintain_order="left")
    is_estimated = pl.col("is_estimated") & (pl.col("status") == "closed")
    status = pl.when(is_estimated).then(pl.lit("estimated"))
    return spans.with_columns(
        seq=pl.when(is_call).then("number").otherwise("seq"),
        status=status.otherwise(pl.col("status").cast(pl.String)),
    ).drop("row", "number", "is_estimated"), notes


def number_messages(spans: pl.DataFrame) -> pl.DataFrame:
    """Fill `seq` of messages between two ranks by their order, as they do not overtake each other.

    It numbers a pair of ranks without numbers that has as many sends as receives. Messages of other
    pairs stay null, unmatched. An optional column `key` separates kinds of messages of a pair.
    """
    if "peer" not in spans.columns or "seq" not in spans.columns:
        return spans
    op = pl.col("op").cast(pl.String)
    is_message = (
        op.is_in(POINT_TO_POINT)
        & (pl.col("kind") == "reduction")
        & (pl.col("role") == "worker")
        & (pl.col("peer") >= 0)
    )
    if not spans.select((is_message & pl.col("seq").is_null()).any()).item():
        return spans
    pair_key = ["communicator", *(["key"] if "key" in spans.columns else []), "sender", "receiver"]
    is_send = op == "send"
    spans = spans.with_row_index("row")
    message_numbers = (
        spans.filter(is_message)
        .with_columns(
            sender=pl.when(is_send).then("rank").otherwise("peer").cast(pl.Int64),
            receiver=pl.when(is_send).then("peer").otherwise("rank").cast(pl.Int64),
            is_send=is_send,
        )
        .with_columns(
            number=pl.int_range(pl.len())
            .over(*pair_key, "is_send", order_by="start_ns")
            .cast(pl.Int64),
            is_even=(pl.col("is_send").sum() * 2 == pl.len()).over(pair_key),
            has_no_numbers=pl.col("seq").is_null().all().over(pair_key),
        )
        .filter("is_even", "has_no_numbers")
        .select("row", "number")
    )
    spans = spans.join(message_numbers, on="row", how="left", maintain_order="left")
    return spans.with_columns(seq=pl.coalesce("seq", "number")).drop("row", "number")


def build_communicator_table(
    spans: pl.DataFrame, ranks_by_communicator: Mapping[str, Sequence[int]]
) -> pl.DataFrame:
    """Return one row per communicator that collectives name: its name and ranks.

    The ranks are those that call it, and those that `ranks_by_communicator` lists for its name.
    """
    member_table = pl.DataFrame(
        {
            "name": list(ranks_by_communicator),
            "ranks": [list(ranks) for ranks in ranks_by_communicator.values()],
        },
        schema={"name": pl.String(), "ranks": pl.List(pl.Int32())},
    )
    callers = (
        spans.filter((pl.col("role") == "worker") & pl.col("communicator").is_not_null())
        .group_by("communicator")
        .agg(callers=pl.col("rank").unique().cast(pl.Int32))
        .with_columns(name=pl.col("communicator").cast(pl.String))
    )
    known_ranks = pl.col("callers").list.set_union(pl.col("ranks").fill_null([])).list.sort()
    table = callers.join(member_table, on="name", how="left").with_columns(ranks=known_ranks)
    return fit_columns(table.sort("name"), COMMUNICATOR_COLUMNS)


def _complete_communicators(spans: pl.DataFrame, is_call: pl.Expr) -> pl.DataFrame:
    """Put calls without a communicator into that of all ranks, `world`; add missing columns."""
    optional_columns = {"communicator": pl.Categorical(), "seq": pl.Int64()}
    spans = spans.with_columns(
        pl.lit(None, dtype).alias(name)
        for name, dtype in optional_columns.items()
        if name not in spans.columns
    )
    world_of_calls = pl.when(is_call).then(pl.lit(WORLD, pl.Categorical()))
    return spans.with_columns(communicator=pl.coalesce("communicator", world_of_calls))


def _number_calls(calls: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Number the calls of one communicator so that calls of different ranks match.

    Returns a table `row`, `number` (null: not matched) and `is_estimated` (by their order alone); and
    the problem in words, or "".
    """
    calls_with_seq = calls.filter(pl.col("seq").is_not_null())
    if calls_with_seq.is_empty():
        uneven_call = _describe_uneven_call(calls)
        if uneven_call:
            return _build_number_table(calls, pl.lit(None)), _UNEVEN.format(uneven=uneven_call)
        turn_in_step = pl.int_range(pl.len()).over("process", "name", "step")
        numbers = _number_by_key(calls.with_columns(turn=turn_in_step), "step", "name", "turn")
        return numbers.with_columns(is_estimated=pl.lit(value=True)), _ORDERED
    if not _has_repeated_key(calls_with_seq, "seq"):
        is_too_large = calls_with_seq.select((pl.col("seq") >= _MOST_CALLS).any()).item()
        if is_too_large:
            return _number_by_key(calls, "seq"), ""
        return _build_number_table(calls, pl.col("seq")), ""
    if not _has_repeated_key(calls_with_seq, "step", "seq"):  # numbers restart in each step
        return _number_by_key(calls, "step", "seq"), ""
    return _build_number_table(calls, pl.lit(None)), _TWICE


def _has_repeated_key(calls: pl.DataFrame, *key_columns: str) -> bool:
    """Return True if a process makes two calls that are equal in `key_columns`."""
    return bool(calls.select(pl.struct("process", *key_columns).is_duplicated().any()).item())


def _describe_uneven_call(calls: pl.DataFrame) -> str:
    """Describe the first call that processes make different numbers of in a step; "" without one.

    `calls` has one row per call of a process, in order of time.
    """
    process_count = calls["process"].n_unique()
    uneven_calls = (
        calls.group_by("name", "step", "process", maintain_order=True)
        .len()
        .group_by("name", "step", maintain_order=True)
        .agg(min_count=pl.col("len").min(), max_count=pl.col("len").max(), callers=pl.len())
        .filter((pl.col("min_count") < pl.col("max_count")) | (pl.col("callers") < process_count))
    )
    if uneven_calls.is_empty():
        return ""
    name, step, min_count, max_count, caller_count = uneven_calls.row(0)
    least_count = 0 if caller_count < process_count else min_count
    step_text = f" in step {step}" if step >= 0 else ""
    return f"{least_count} to {max_count} of {quoted(name)}{step_text}"


def _number_by_key(calls: pl.DataFrame, *key_columns: str) -> pl.DataFrame:
    """Return the number table of calls: equal keys share a number, in the order of the first rank.

    Calls without `seq` get no number if it is a key column. The table has the `row` of each call (rows
    of `calls`), and its `number`.
    """
    first_calls = (
        calls.sort("process", "start_ns")
        .unique(key_columns, keep="first", maintain_order=True)
        .sort("step", "process", "start_ns", maintain_order=True)
        .with_row_index("number")
    )
    numbered_calls = calls.join(
        first_calls.select(*key_columns, "number"), on=key_columns, how="left", nulls_equal=True
    )
    has_key = pl.col("seq").is_not_null() if "seq" in key_columns else pl.lit(value=True)
    return _build_number_table(numbered_calls, pl.when(has_key).then("number"))


def _build_number_table(calls: pl.DataFrame, number: pl.Expr) -> pl.DataFrame:
    """Return `row`, `number` and `is_estimated` (False) of calls."""
    return calls.select("row", number=number.cast(pl.Int64), is_estimated=pl.lit(value=False))


def _note_collectives(problem: str, communicators: list[str]) -> Note:
    more = " and more" if len(communicators) > MAX_ENTRIES_LISTED else ""
    listed_communicators = ", ".join(communicators[:MAX_ENTRIES_LISTED]) + more
    return Note(file="", sentence=f"Collectives of {listed_communicators}: {problem}", kind="table")
