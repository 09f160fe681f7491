"""Matches each collective call across ranks: when each came, who came last, who waited how long.

Calls belong together if communicator and sequence number are equal; nothing is guessed from times.
Where the calls of one number differ (another op, another bucket), the ranks have lost step with each
other: from there on nothing of that communicator is matched, and a note says where it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.schema.vocabulary import COLLECTIVES, FULL_COLLECTIVES
from tracelens.trace import ARRIVAL_COLUMNS, Note
from tracelens.transforms.device import carried_out

if TYPE_CHECKING:
    from tracelens.trace import Trace

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
    expected = _expected(trace)
    instances = _instances(calls, expected)
    desync = _first_divergence(instances)
    arrivals = _waits(_trusted(calls.join(instances, on=_CALL, maintain_order="left"), desync))
    notes = _notes(calls, desync, trace.communicators)
    notes += _impossible(arrivals, trace.uncertainty_ns)
    return trace.with_(arrivals=arrivals.select(*ARRIVAL_COLUMNS), notes=(*trace.notes, *notes))


def _calls(trace: Trace) -> pl.DataFrame:
    """Return each rank's calls, one row for a rank and number."""
    wanted = ("process", "rank", *_CALL, "op", "step", "bucket", "bytes", "thread", "peer")
    main = trace.workers.select("process")
    return (
        trace.spans.filter(
            pl.col("kind") == "reduction",
            pl.col("op").cast(pl.String).is_in(COLLECTIVES),
            pl.col("communicator").is_not_null(),
            pl.col("seq").is_not_null(),
        )
        .join(main.lazy(), on="process", how="semi")
        .select(*wanted, "status", **carried_out())
        .sort("communicator", "seq", "process", "start_ns")
        .unique([*_CALL, "process"], keep="first", maintain_order=True)
        .collect()
    )


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
    """Return one row a collective: who came, who came last, and whether the calls agree."""
    latest = pl.col("start_ns").arg_max()
    finished = pl.col("end_ns").is_not_null() & pl.col("status").is_in(["closed", "estimated"])
    measured = pl.col("op").cast(pl.String).is_in(EQUAL_BYTES)
    gathered = calls.group_by(_CALL, maintain_order=True).agg(
        arrived=pl.len().cast(pl.Int32),
        here=pl.col("rank"),
        last=pl.col("start_ns").max(),
        latest=pl.col("rank").get(latest),
        finished=finished.any(),
        ops=pl.col("op").n_unique(),
        buckets=pl.col("bucket").drop_nulls().n_unique(),
        sizes=pl.col("bytes").filter(measured).drop_nulls().n_unique(),
        root_at=pl.col("start_ns").filter(pl.col("rank") == pl.col("peer")).min(),
    )
    absent = pl.col("present").list.set_difference("here").list.sort()
    strangers = pl.col("here").list.set_difference("ranks").list.len() > 0
    return gathered.join(expected, on="communicator", how="left", maintain_order="left").select(
        *_CALL,
        "arrived",
        "root_at",
        expected=pl.col("expected").fill_null(pl.col("arrived")),
        absent=pl.when(~pl.col("finished")).then(absent.list.first()),
        last="last",
        latest="latest",
        apart=(pl.col("ops") > 1) | (pl.col("buckets") > 1) | strangers.fill_null(value=False),
        unequal=pl.col("sizes") > 1,
    )


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


def _waits(arrivals: pl.DataFrame) -> pl.DataFrame:
    """Split each call into waiting for the last rank, and the rest.

    A call that an expected rank never joined has no last arrival; `last_rank` is then who is missing.
    """
    complete = pl.col("matched") & pl.col("absent").is_null()
    duration = pl.col("end_ns") - pl.col("start_ns")
    until = _awaited() - pl.col("start_ns")
    wait = pl.min_horizontal(until.clip(lower_bound=0), duration)
    return arrivals.with_columns(
        last_arrival_ns=pl.when(complete).then("last"),
        last_rank=pl.when("matched").then(pl.coalesce("absent", "latest")),
        wait_ns=pl.when(complete).then(wait),
    ).with_columns(transfer_ns=duration - pl.col("wait_ns"))


def _awaited() -> pl.Expr:
    """When a call could go on: at the last arrival, or as the root of the operation says."""
    op, root = pl.col("op").cast(pl.String), pl.col("peer")
    here = pl.col("start_ns")
    from_root = pl.when(pl.col("rank") == root).then(here).otherwise("root_at")
    to_root = pl.when(pl.col("rank") == root).then("last").otherwise(here)
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
        said = (
            at.group_by(pl.format("{}{}", "op", _bytes()).alias("call"))
            .agg(pl.col("rank").sort())
            .sort(pl.col("rank").list.len(), "call")
        )
        parts = [f"{call} on ranks {_ranks(ranks)}" for call, ranks in said.iter_rows()]
        sentence = (
            f"Ranks lost step in communicator '{known.get(uid, uid)}' at call {first}: "
            f"{', but '.join(parts)}; its waits are unknown from there on."
        )
        notes.append(Note(file="", sentence=sentence, kind="desync"))
    return notes


def _impossible(arrivals: pl.DataFrame, uncertainty_ns: int) -> list[Note]:
    """Note full collectives that a rank left before the last had come: clocks or matches are wrong."""
    full = arrivals.filter(
        pl.col("op").cast(pl.String).is_in(FULL_COLLECTIVES),
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
