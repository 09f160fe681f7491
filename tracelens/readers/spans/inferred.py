"""What rows of spans seldom hold and imply: threads in flight, step numbers, matching collectives.

Communication on a thread of its own is in flight, and so is what runs on a device's stream. So is
communication that crosses other work of its thread, since no thread does two things at once, and where
a table names no threads also what lies within other work, as gradient buckets do: it is moved to a track
of its own.

Steps without a number are counted by step rows.

Messages without a number are counted between each two ranks, if both record equally many.
Calls of different ranks are matched by number (`seq`). Where numbers restart in each step,
step and number together are the number. Where there are none, calls are put together by their order
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

__all__ = [
    "WORLD",
    "communicator_table",
    "lay_out_threads",
    "match_collectives",
    "number_messages",
    "number_steps",
]


_FLYING: Final = ("reduction", "ps", "elastic")
_WORK: Final = ("data", "forward", "backprop", "update")
_MOST_THREADS: Final = 2**16 - 1
_OVERLAP: Final = 0.05  # of an operation: less is the rounding of times
_RARE: Final = 0.01  # of all operations: fewer are slips of a clock
_PLACE: Final = ("process", "thread")
_FOREVER: Final = 2**62
WORLD: Final = "world"
_MOST_CALLS: Final = 2**32 - 1
_SHOWN: Final = 8
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
    frame, names = _numbered_threads(find_streams(frame))
    there = frame["kind"].unique().cast(pl.String)
    crossing = [
        kind for kind in _FLYING if kind in there and _crosses(frame, kind, has_threads=has_threads)
    ]
    moved = pl.col("kind").cast(pl.String).is_in(crossing) & (pl.col("role") == "worker")
    track = pl.col("thread").max().over("process") + 1
    frame = frame.with_columns(thread=pl.when(moved).then(track).otherwise("thread"))
    threads = _threads(frame, names)
    recognised = _recognised(frame, threads)
    frame = frame.with_columns(pl.col("thread").cast(pl.UInt16))
    return (
        frame.with_columns(depth=_depths(frame)),
        threads,
        [*_overlap_notes(crossing, has_threads=has_threads), *recognised],
    )


def _numbered_threads(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Turn threads into small numbers: their own where they are such, else in order of time."""
    if "thread" not in frame.columns:
        named = frame.with_columns(thread=pl.lit(0, pl.Int64))
        return named, pl.DataFrame(
            schema={"process": pl.Int32, "thread": pl.Int64, "given": pl.String}
        )
    threads = frame.group_by("process", given=pl.col("thread"), maintain_order=True).agg(
        first=pl.col("start_ns").min()
    )
    number = pl.col("given").cast(pl.String).cast(pl.Int64, strict=False)
    plain = number.is_between(0, _MOST_THREADS - 1).fill_null(value=False).all()
    threads = threads.sort("process", "first").with_columns(
        number=pl.when(plain).then(number).otherwise(pl.int_range(pl.len()).over("process"))
    )
    rows = frame.rename({"thread": "given"}).join(
        threads.select("process", "given", thread="number"),
        on=["process", "given"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    names = threads.select("process", thread="number", given=pl.col("given").cast(pl.String))
    return rows.drop("given"), names


def _crosses(frame: pl.DataFrame, kind: str, *, has_threads: bool) -> bool:
    """Return whether operations of a kind cross other work of their worker's thread.

    Where threads are not given, being within other work is enough.
    """
    place, flies = list(_PLACE), pl.col("flies")
    start, end = pl.col("start_ns"), pl.col("end_ns")
    work_ends = pl.when(~flies).then(end).cum_max().forward_fill().over(place)
    work_begins = pl.when(~flies).then(start).shift(-1).backward_fill().over(place)
    # The lesser of an end and of none is that end.
    within = pl.when(work_ends.is_not_null()).then(pl.min_horizontal(work_ends, end) - start)
    before = pl.when(work_ends < end).then(within) if has_threads else within
    cut = pl.max_horizontal(before, end - work_begins) / (end - start).clip(lower_bound=1)
    crossed = (
        frame.lazy()
        .filter(pl.col("role") == "worker", pl.col("kind").cast(pl.String).is_in([kind, *_WORK]))
        .select(*place, start, end.fill_null(_FOREVER), flies=pl.col("kind") == kind)
        .sort(*place, "start_ns", "end_ns", descending=[False, False, False, True])
        .with_columns(crossed=cut.fill_null(0) > _OVERLAP)
        .filter("flies")
        .select(pl.col("crossed").mean())
    )
    share = crossed.collect().item()
    return bool(share is not None and share > _RARE)


def _threads(frame: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Describe all threads; a worker's streams and those that only communicate run beside its others."""
    communicates = pl.col("kind").cast(pl.String).is_in(_FLYING) & (pl.col("role") == "worker")
    found = frame.group_by(_PLACE).agg(level=level_of_thread(communicates)).sort(_PLACE)
    named = found.join(names, on=_PLACE, how="left", maintain_order="left").with_columns(
        in_flight=pl.col("level") > pl.col("level").min().over("process"),
        name=pl.coalesce("given", pl.format("thread {}", "thread")),
    )
    return fitted(named, THREAD_COLUMNS)


def _depths(frame: pl.DataFrame) -> pl.Series:
    """Count nesting process by process: sorting many short arrays is quicker than one long one."""
    thread = frame["thread"].cast(pl.Int64).to_numpy()
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].fill_null(_FOREVER).to_numpy()
    found = np.zeros(frame.height, np.int64)
    bounds = np.flatnonzero(np.diff(frame["process"].to_numpy(), prepend=-1, append=-1))
    for first, last in pairwise(bounds):
        part = slice(first, last)
        found[part] = depths(thread[part], start[part], end[part])
    return pl.Series("depth", np.minimum(found, _MOST_THREADS).astype(np.uint16))


def _overlap_notes(crossing: list[str], *, has_threads: bool) -> list[Note]:
    if not crossing:
        return []
    owner, advice = (
        ("thread", "give it a thread of its own") if has_threads else ("rank", "add 'thread'")
    )
    sentence = (
        f"Communication ({', '.join(crossing)}) overlaps other work of its {owner}, so it is taken to "
        f"run beside the code; {advice} to say where it ran."
    )
    return [Note(file="", sentence=sentence, kind="table")]


def _recognised(frame: pl.DataFrame, threads: pl.DataFrame) -> list[Note]:
    """Note what each thread or stream of a worker was taken for, if there are several."""
    kinds = (
        frame.filter(pl.col("role") == "worker")
        .group_by("process", "thread", pl.col("kind").cast(pl.String))
        .agg(rows=pl.len(), first=pl.col("start_ns").min())
        .join(threads.with_columns(pl.col("thread").cast(pl.Int64)), on=["process", "thread"])
    )
    if kinds.select(pl.col("thread").n_unique().over("process").max()).item() in {None, 1}:
        return []
    named = (
        kinds.group_by("name", "kind")
        .agg(pl.col("rows").sum(), pl.col("in_flight").all(), pl.col("first").min())
        .sort("rows", "kind", descending=[True, False])
        .group_by("name", maintain_order=True)
        .agg("kind", pl.col("in_flight").all(), pl.col("first").min())
        .sort("first", "name")
    )
    shown = [
        f"{quoted(name)} ({', '.join(kinds)}{'; beside the code' if beside else ''})"
        for name, kinds, beside in named.head(_SHOWN).select("name", "kind", "in_flight").rows()
    ]
    more = f" and {named.height - _SHOWN} more" if named.height > _SHOWN else ""
    sentence = f"Recognised as threads and streams of ranks: {', '.join(shown)}{more}."
    return [Note(file="", sentence=sentence, kind="table")]


def number_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill `step` by rows for steps if no row has one; rows are in order of process and time."""
    if "step" in frame.columns and frame["step"].count():
        return frame.with_columns(pl.col("step").fill_null(-1))
    frame = frame.with_columns(step=pl.lit(-1, pl.Int32))
    marked = pl.col("kind") == "step"
    ordinal = marked.cum_sum().over("process").cast(pl.Int32) - 1
    return frame.with_columns(step=pl.when(marked).then(ordinal).otherwise("step"))


def match_collectives(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Complete `communicator`, `seq` and `status` of the workers' collectives.

    What has no number and estimated times has no order that would match it.
    """
    called = (
        (pl.col("kind") == "reduction")
        & pl.col("op").cast(pl.String).is_in(COLLECTIVES)
        & (pl.col("role") == "worker")
    )
    frame = _completed(frame, called)
    called &= pl.col("seq").is_not_null() | (pl.col("status") != "estimated")
    calls = frame.with_row_index("row").filter(called)
    parts = []
    groups_of: dict[str, list[str]] = {}
    for (group,), part in calls.group_by("communicator", maintain_order=True):
        found, problem = _numbered_calls(part)
        parts.append(found)
        groups_of.setdefault(problem, []).append(quoted(str(group)))
    notes = [
        _collective_note(sentence, groups) for sentence, groups in groups_of.items() if sentence
    ]
    if not parts:
        return frame, notes
    found = pl.concat(parts)
    joined = frame.with_row_index("row").join(found, on="row", how="left", maintain_order="left")
    estimated = pl.when(pl.col("estimated") & (pl.col("status") == "closed"))
    return joined.with_columns(
        seq=pl.when(called).then("number").otherwise("seq"),
        status=estimated.then(pl.lit("estimated")).otherwise(pl.col("status").cast(pl.String)),
    ).drop("row", "number", "estimated"), notes


def number_messages(frame: pl.DataFrame) -> pl.DataFrame:
    """Count the messages without a number between two ranks, which overtake each other nowhere.

    Only where both record equally many; others stay without one, and are not matched.
    """
    if "peer" not in frame.columns or "seq" not in frame.columns:
        return frame
    op = pl.col("op").cast(pl.String)
    counted = (
        op.is_in(POINT_TO_POINT)
        & (pl.col("kind") == "reduction")
        & (pl.col("role") == "worker")
        & (pl.col("peer") >= 0)
    )
    if not frame.select((counted & pl.col("seq").is_null()).any()).item():
        return frame
    pair = ["communicator", *(name for name in ("key",) if name in frame.columns), "from", "to"]
    sends = op == "send"
    messages = (
        frame.with_row_index("row")
        .filter(counted)
        .with_columns(
            pl.when(sends).then("rank").otherwise("peer").cast(pl.Int64).alias("from"),
            pl.when(sends).then("peer").otherwise("rank").cast(pl.Int64).alias("to"),
            sends=sends,
        )
        .with_columns(
            number=pl.int_range(pl.len()).over(*pair, "sends", order_by="start_ns"),
            even=(pl.col("sends").sum() * 2 == pl.len()).over(pair),
            silent=pl.col("seq").is_null().all().over(pair),
        )
        .filter("even", "silent")
    )
    numbered = frame.with_row_index("row").join(
        messages.select("row", number=pl.col("number").cast(pl.Int64)),
        on="row",
        how="left",
        maintain_order="left",
    )
    return numbered.with_columns(seq=pl.coalesce("seq", "number")).drop("row", "number")


def communicator_table(frame: pl.DataFrame, known: Mapping[str, Sequence[int]]) -> pl.DataFrame:
    """Return the communicators that collectives name, with the ranks that call them.

    And with those that are `known` to be members, by communicator, though nothing of theirs is here.
    """
    named = pl.DataFrame(
        {"communicator": list(known), "ranks": [list(ranks) for ranks in known.values()]},
        schema={"communicator": pl.String(), "ranks": pl.List(pl.Int32())},
    )
    members = (
        frame.filter((pl.col("role") == "worker") & pl.col("communicator").is_not_null())
        .group_by("communicator")
        .agg(called=pl.col("rank").unique().cast(pl.Int32))
        .with_columns(name=pl.col("communicator").cast(pl.String))
        .join(named, left_on="name", right_on="communicator", how="left")
        .with_columns(
            ranks=pl.col("called").list.set_union(pl.col("ranks").fill_null([])).list.sort()
        )
    )
    return fitted(members.sort("name"), COMMUNICATOR_COLUMNS)


def _completed(frame: pl.DataFrame, called: pl.Expr) -> pl.DataFrame:
    """Assign to collectives without a communicator that of all ranks."""
    absent = {"communicator": pl.Categorical(), "seq": pl.Int64()}
    frame = frame.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in absent.items() if name not in frame.columns
    )
    world = pl.when(called).then(pl.lit(WORLD, pl.Categorical()))
    return frame.with_columns(communicator=pl.coalesce("communicator", world))


def _numbered_calls(calls: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return row, number and whether it is estimated, for one communicator; and a note on it."""
    numbered = calls.filter(pl.col("seq").is_not_null())
    if numbered.is_empty():
        return _by_order(calls)
    if not _repeats(numbered, "seq"):
        large = numbered.select((pl.col("seq") >= _MOST_CALLS).any()).item()
        return (_dense(calls, "seq") if large else _kept(calls)), ""
    if not _repeats(numbered, "step", "seq"):
        return _dense(calls, "step", "seq"), ""
    return _unmatched(calls), _TWICE


def _by_order(calls: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    uneven = _uneven(calls)
    if uneven:
        return _unmatched(calls), _UNEVEN.format(uneven=uneven)
    turn = pl.int_range(pl.len()).over("process", "name", "step")
    found = _dense(calls.with_columns(turn=turn), "step", "name", "turn")
    return found.with_columns(estimated=pl.lit(value=True)), _ORDERED


def _repeats(calls: pl.DataFrame, *key: str) -> bool:
    return bool(calls.select(pl.struct("process", *key).is_duplicated().any()).item())


def _uneven(calls: pl.DataFrame) -> str:
    """Return where ranks make different numbers of calls; empty if nowhere."""
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
    first = counts.row(0, named=True)
    least = 0 if first["ranks"] < ranks else first["least"]
    where = f" in step {first['step']}" if first["step"] >= 0 else ""
    return f"{least} to {first['most']} of {quoted(first['name'])}{where}"


def _dense(calls: pl.DataFrame, *key: str) -> pl.DataFrame:
    """Assign one number to calls with equal keys, in the order of the first rank that makes them."""
    order = (
        calls.sort("process", "start_ns")
        .unique(key, keep="first", maintain_order=True)
        .sort("step", "process", "start_ns", maintain_order=True)
        .with_row_index("number")
    )
    found = calls.join(order.select(*key, "number"), on=key, how="left", nulls_equal=True)
    known = pl.when(pl.col("seq").is_not_null() if "seq" in key else pl.lit(value=True))
    return found.select(
        "row", number=known.then(pl.col("number").cast(pl.Int64)), estimated=pl.lit(value=False)
    )


def _kept(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select("row", number=pl.col("seq").cast(pl.Int64), estimated=pl.lit(value=False))


def _unmatched(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select("row", number=pl.lit(None, pl.Int64), estimated=pl.lit(value=False))


def _collective_note(sentence: str, groups: list[str]) -> Note:
    listed = ", ".join(groups[:_SHOWN]) + (" and more" if len(groups) > _SHOWN else "")
    return Note(file="", sentence=f"Collectives of {listed}: {sentence}", kind="table")
