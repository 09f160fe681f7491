"""Matches collective calls across ranks: arrivals, the last rank to arrive, and each rank's wait.

Calls belong together if communicator and sequence number are equal; nothing is guessed from times.
Where the calls of one number differ (another op, another bucket), the ranks have lost step with each
other: from there on nothing of that communicator is matched, and a note says where it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model.trace import ARRIVAL_COLUMNS, Note, work_times
from tracelens.schema.vocabulary import COLLECTIVES, FULL_COLLECTIVES

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

# Every rank contributes equally many bytes; elsewhere they may differ (a root, variable counts).
EQUAL_BYTES: Final = ("allreduce",)
# With a known root (`peer`), the others wait for it alone, or it alone waits for the others.
FROM_ROOT: Final = ("broadcast", "scatter")
TO_ROOT: Final = ("reduce", "gather")
RARE: Final = 0.01  # completion may be noted late, in another thread
_CALL: Final = ("communicator", "seq")


def match(trace: Trace) -> Trace:
    """Fill `arrivals`, and note desynchronised communicators."""
    calls = _calls(trace)
    instances = _instances(calls, _expected(trace))
    desync = _first_divergence(instances)
    trusted = _trusted(_with(calls, instances), desync)
    arrivals = _waits(_timed(trusted, trace.processes, trace.alignment.unaligned))
    notes = _notes(calls, desync, trace.communicators)
    notes += _impossible(arrivals, trace.uncertainty_ns)
    return trace.with_(arrivals=arrivals.select(*ARRIVAL_COLUMNS), notes=(*trace.notes, *notes))


def _calls(trace: Trace) -> pl.DataFrame:
    """Return each rank's calls, one row for a rank and number, sorted by number."""
    wanted = ("process", "rank", *_CALL, "op", "step", "bucket", "bytes", "thread", "peer")
    main = trace.workers.select("process")
    calls = (
        trace.spans.filter(
            pl.col("kind") == "reduction",
            pl.col("op").is_in(COLLECTIVES),
            pl.col("communicator").is_not_null(),
            pl.col("seq").is_not_null(),
        )
        .join(main.lazy(), on="process", how="semi")
        .select(*wanted, **work_times(), status="status")
        .collect()
    )
    words = calls.select(pl.col("communicator").unique()).sort(
        pl.col("communicator").cast(pl.String)
    )
    number = pl.col("place").cast(pl.Int64) * 2**32 + pl.col("seq")
    ordered = (
        calls.join(words.with_row_index("place"), on="communicator", maintain_order="left")
        .with_columns(number=number)
        .drop("place")
        .sort("number", "process", "start_ns", maintain_order=True)
    )
    again = (pl.col("number").diff() == 0) & (pl.col("process").diff() == 0)
    return ordered.filter(~again.fill_null(value=False))


def _expected(trace: Trace) -> pl.DataFrame:
    """Return for each communicator its size and the ranks whose whole recording is here."""
    cut = [note.file for note in trace.notes if note.kind == "truncated"]
    whole = trace.workers.filter(~pl.col("file").is_in(cut))["rank"]
    members = pl.col("ranks").list
    present = members.set_intersection(pl.lit(whole.implode()))
    return trace.communicators.unique("communicator").select(
        "communicator", expected=members.len().cast(pl.Int32), present=present, ranks="ranks"
    )


def _instances(calls: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    """Return one row a collective, in the calls' order: its arrivals, and whether its calls agree."""
    latest = pl.col("start_ns").arg_max()
    finished = pl.col("end_ns").is_not_null() & pl.col("status").is_in(["closed", "estimated"])
    size = pl.col("bytes").filter(pl.col("op").is_in(EQUAL_BYTES))
    op = pl.col("op").to_physical()
    members = expected.select("communicator", rank="ranks").explode("rank")
    outside = calls.join(members, on=["communicator", "rank"], how="anti")["number"].unique()
    known = pl.col("communicator").is_in(expected["communicator"].implode())
    gathered = calls.group_by("number", maintain_order=True).agg(
        pl.col(_CALL).first(),
        arrived=pl.len().cast(pl.Int32),
        last=pl.col("start_ns").max(),
        latest=pl.col("rank").get(latest),
        finished=finished.any(),
        differ=_vary(op) | _vary(pl.col("bucket")),
        unequal=_vary(size),
        root_at=pl.col("start_ns").filter(pl.col("rank") == pl.col("peer")).min(),
    )
    absent = _absent(calls, gathered.filter(~pl.col("finished")), expected)
    sizes = expected.select("communicator", "expected")
    outsiders = pl.col("number").is_in(outside.implode()) & known
    return (
        gathered.join(sizes, on="communicator", how="left", maintain_order="left")
        .join(absent, on="number", how="left", maintain_order="left")
        .with_columns(
            pl.col("expected").fill_null(pl.col("arrived")),
            apart=pl.col("differ") | outsiders,
        )
    )


def _vary(values: pl.Expr) -> pl.Expr:
    return (values.min() != values.max()).fill_null(value=False)


def _absent(calls: pl.DataFrame, unfinished: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    """Return for each collective that no rank finished the first rank that never entered it."""
    entered = (
        calls.join(unfinished, on="number", how="semi")
        .group_by("number")
        .agg(pl.col("communicator").first(), entered="rank")
    )
    missing = pl.col("present").list.set_difference("entered").list.sort()
    return entered.join(expected, on="communicator").select("number", absent=missing.list.first())


def _with(calls: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Add to each call what is known of its collective."""
    rows = pl.Series(np.repeat(np.arange(instances.height), instances["arrived"].to_numpy()))
    beside = instances.select(pl.exclude("number", *_CALL).gather(rows))
    return calls.hstack(beside)


def _first_divergence(instances: pl.DataFrame) -> pl.DataFrame:
    """Return communicator, the number from which ranks are apart, and whether only bytes differ."""
    return (
        instances.filter(pl.col("apart") | pl.col("unequal"))
        .group_by("communicator")
        .agg(
            first=pl.col("seq").min(),
            apart_from=pl.col("seq").filter("apart").min(),
        )
    )


def _trusted(arrivals: pl.DataFrame, desync: pl.DataFrame) -> pl.DataFrame:
    """Mark the calls whose partners are known."""
    joined = arrivals.join(desync, on="communicator", how="left", maintain_order="left")
    lost = (pl.col("seq") >= pl.col("apart_from")).fill_null(value=False)
    return joined.with_columns(matched=~lost & ~pl.col("unequal"))


def _timed(
    arrivals: pl.DataFrame, processes: pl.DataFrame, unaligned: tuple[str, ...]
) -> pl.DataFrame:
    """Mark the calls of communicators whose ranks are on clocks that are tied to each other."""
    if not unaligned:
        return arrivals.with_columns(timed=pl.lit(value=True))
    clocks = arrivals.select("communicator", "process").unique().join(processes, on="process")
    apart = clocks.group_by("communicator").agg(
        timed=(pl.col("clock_domain").n_unique() < 2)
        | ~pl.col("clock_domain").is_in(unaligned).any()
    )
    return arrivals.join(apart, on="communicator", how="left", maintain_order="left")


def _waits(arrivals: pl.DataFrame) -> pl.DataFrame:
    """Split each call into waiting for the last rank, and the rest.

    A call that an expected rank never joined has no last arrival; its `last_rank` is that rank.
    Where clocks are not tied to each other the last arrival is not known.
    """
    complete = pl.col("matched") & pl.col("absent").is_null() & pl.col("timed")
    duration = pl.col("end_ns") - pl.col("start_ns")
    until = _awaited() - pl.col("start_ns")
    wait = pl.min_horizontal(until.clip(lower_bound=0), duration)
    return arrivals.with_columns(
        last_arrival_ns=pl.when(complete).then("last"),
        last_rank=pl.when("matched").then(pl.coalesce("absent", pl.when("timed").then("latest"))),
        wait_ns=pl.when(complete).then(wait),
    ).with_columns(transfer_ns=duration - pl.col("wait_ns"))


def _awaited() -> pl.Expr:
    """Return when a call could proceed: at the last arrival, or as the operation's root requires."""
    op, root = pl.col("op"), pl.col("peer")
    arrival = pl.col("start_ns")
    from_root = pl.when(pl.col("rank") == root).then(arrival).otherwise("root_at")
    to_root = pl.when(pl.col("rank") == root).then("last").otherwise(arrival)
    return (
        pl.when(op.is_in(FROM_ROOT) & pl.col("root_at").is_not_null())
        .then(from_root)
        .when(op.is_in(TO_ROOT) & pl.col("root_at").is_not_null())
        .then(to_root)
        .otherwise("last")
    )


def _notes(calls: pl.DataFrame, desync: pl.DataFrame, names: pl.DataFrame) -> list[Note]:
    known = dict(names.select(pl.col("communicator").cast(pl.String), "name").iter_rows())
    notes = []
    for uid, first, _ in desync.sort("first").iter_rows():
        at = calls.filter((pl.col("communicator") == uid) & (pl.col("seq") == first))
        variants = (
            at.group_by(pl.format("{}{}", "op", _bytes()).alias("call"))
            .agg(pl.col("rank").sort())
            .sort(pl.col("rank").list.len(), "call")
        )
        parts = [f"{call} on ranks {_ranks(ranks)}" for call, ranks in variants.iter_rows()]
        sentence = (
            f"Ranks lost step in communicator '{known.get(uid, uid)}' at call {first}: "
            f"{', but '.join(parts)}; its waits are unknown from there on."
        )
        notes.append(Note(file="", sentence=sentence, kind="desync"))
    return notes


def _impossible(arrivals: pl.DataFrame, uncertainty_ns: int) -> list[Note]:
    """Note full collectives left by a rank before the last had entered: clocks or matches are wrong."""
    full = arrivals.filter(
        pl.col("op").is_in(FULL_COLLECTIVES),
        pl.col("last_arrival_ns").is_not_null(),
    )
    early = full.group_by(_CALL).agg(ns=pl.col("last_arrival_ns").first() - pl.col("end_ns").min())
    worst = early.filter(pl.col("ns") > 3 * uncertainty_ns)
    if worst.height <= RARE * early.height:
        return []
    sentence = (
        f"In {worst.height} of {early.height} collectives a rank left before the last had come, by "
        f"up to {max(worst['ns'].to_list())} ns, which cannot be: the clocks are aligned worse than "
        "believed, or a rank skipped a call; do not trust waits."
    )
    return [Note(file="", sentence=sentence, kind="clock")]


def _bytes() -> pl.Expr:
    size = pl.format(" of {} bytes", "bytes")
    bucket = pl.format(" (bucket {})", "bucket")
    return pl.concat_str(size.fill_null(""), bucket.fill_null(""))


def _ranks(ranks: list[int], shown: int = 8) -> str:
    text = ", ".join(str(rank) for rank in ranks[:shown])
    return text if len(ranks) <= shown else f"{text} and {len(ranks) - shown} more"
