"""What limits the trace: ranks that are missing, were cut off, lost events, or lost step with others.

Such findings have no saving; they come first in a report, since they bound what the rest can show. Of
several processes that were cut off together, the one that the others were waiting for was first: it is
named, with the span that was open in it. Ranks that the end of the recording left blocked in a
collective tell who never entered it. Where calls do not match since a rank ended its training loop
before the others, that is said (`accounting/early_ends.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting.restarts import left_behind
from tracelens.model import fmt
from tracelens.model.calls import NEVER, arrivals_of
from tracelens.model.findings import Finding
from tracelens.model.shown import Shown
from tracelens.schema.vocabulary import CHOSEN_LOSSES, SEGMENTS_SUFFIX

if TYPE_CHECKING:
    from tracelens.accounting.early_ends import EarlyEnd
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace


MAX_NAMES_LISTED: Final = 8  # processes or ranks: a sentence names no more [policy]
# share of events: if fewer were dropped, what is left tells the same story [policy]
MIN_SHARE_DROPPED_IF_FAULT: Final = 0.01


@dataclass(frozen=True, eq=False)
class Integrity(Shown):
    """The findings; `open_spans` holds what each process that was cut off was in, innermost."""

    open_spans: pl.DataFrame
    findings: tuple[Finding, ...]


def run(facts: Facts) -> Integrity:
    """Look for what is not there."""
    trace = facts.trace
    spans = _open_spans(trace)
    findings = [
        *([] if trace.cut_short else _broken_off(trace, spans)),
        *_damaged(trace),
        *_missing(trace),
        *_dropped(trace),
        *_desync(facts),
        *_hangs(facts),
        *_jumps(trace),
    ]
    return Integrity(spans, tuple(findings))


def _open_spans(trace: Trace) -> pl.DataFrame:
    """Return what each main process that did not end by itself was in: its innermost open span."""
    cut = trace.processes.filter(pl.col("main") & ~pl.col("complete"))
    tracks = trace.threads.filter("in_flight").select("process", "thread").lazy()
    return (
        trace.opened.lazy()
        .filter(pl.col("kind") != "step")
        .join(cut.select("process").lazy(), on="process", how="semi")
        .join(tracks, on=["process", "thread"], how="anti")
        .sort("process", "start_ns", "depth")
        .group_by("process", "role", "rank", maintain_order=True)
        .agg(pl.col("kind", "op", "name", "step", "start_ns", "communicator", "seq").last())
        .collect()
    )


def _damaged(trace: Trace) -> list[Finding]:
    """Report files whose end is missing: the process may have run on."""
    files = [note.file for note in trace.notes if note.kind == "truncated"]
    rows = trace.processes.filter(pl.col("main") & pl.col("file").is_in(files))
    return [
        Finding.of(
            "truncated_trace",
            {"who": _name(row), "events": f"{row['events']:,}"},
            case="damaged",
            ranks=() if row["role"] == "ps" else (row["rank"],),
            shards=(row["shard"],) if row["role"] == "ps" and row["shard"] is not None else (),
            hosts=(row["host"],),
            evidence={"file": row["file"], "events": row["events"]},
        )
        for row in rows.iter_rows(named=True)
    ]


def _broken_off(trace: Trace, open_spans: pl.DataFrame) -> list[Finding]:
    """Report the process that broke off first, of those that did not end their recording.

    A rank that a restart left behind is reported as a change of ranks (`membership.py`).
    """
    explained = [note.file for note in trace.notes if note.kind in {"truncated", "running"}]
    silent = trace.processes.filter(
        pl.col("main")
        & ~pl.col("complete")
        & ~pl.col("file").is_in(explained)
        & ~pl.col("process").is_in(left_behind(trace))
    )
    if silent.is_empty():
        return []
    workers = silent.filter(pl.col("role") == "worker")
    first = _first_to_go(trace, silent if workers.is_empty() else workers, open_spans)
    row = silent.filter(pl.col("process") == first).row(0, named=True)
    within = open_spans.filter(pl.col("process") == first)
    span = within.row(0, named=True) if within.height else None
    step = _last_step(trace, first, span)
    worker = row["role"] == "worker"
    missed = [one for one in _blocked_at_end(trace) if worker and one["absent"] == row["rank"]]
    left_waiting_ranks = {rank for blocked in missed for rank in blocked["ranks"]}
    others = silent.filter(
        (pl.col("process") != first)
        & ~((pl.col("role") == "worker") & pl.col("rank").is_in(list(left_waiting_ranks)))
    ).sort("role", "rank", descending=[True, False])
    after = [_clause(blocked) for blocked in missed]
    if others.height:
        after.append(f"{_some([_name(o) for o in others.iter_rows(named=True)])} ended after it")
    if trace.choice.ranks is not None:
        after.append("ranks that were left out may have ended before it")
    elsewhere = ", or still running on its host" if row["file"].endswith(SEGMENTS_SUFFIX) else ""
    return [
        Finding.of(
            "truncated_trace",
            {
                "who": fmt.capital(_name(row)),
                "where": _where(span, step),
                "elsewhere": elsewhere,
                "after": "".join(f"; {text}" for text in after),
            },
            ranks=(row["rank"],) if worker else (),
            shards=() if worker or row["shard"] is None else (row["shard"],),
            hosts=(row["host"],),
            phase=span["kind"] if span else None,
            steps=None if step is None else (step, step),
            function=span["name"] if span else None,
            evidence={
                "file": row["file"],
                "broken_off": silent["file"].to_list(),
                "waiting": sorted(left_waiting_ranks),
            },
        )
    ]


def _first_to_go(trace: Trace, cut: pl.DataFrame, open_spans: pl.DataFrame) -> int:
    """Return the process that others were left waiting for, else the one that fell silent first."""
    left = _missed(trace)
    awaited = (
        left.filter(pl.col("last_rank").is_in(cut["rank"].implode()))
        .group_by("last_rank")
        .len()
        .sort("len", "last_rank", descending=[True, False])
    )
    if awaited.height:
        return int(cut.filter(pl.col("rank") == awaited["last_rank"][0])["process"][0])
    communicating = open_spans.filter(pl.col("kind").is_in(["reduction", "wait", "ps"]))
    busy = cut.join(communicating, on="process", how="anti")
    candidates = busy if 0 < busy.height < cut.height else cut
    return int(candidates.sort("last_ns", nulls_last=True)["process"][0])


def _missed(trace: Trace) -> pl.DataFrame:
    """Return the arrivals at calls to which not all came, or of which it is not known."""
    return arrivals_of([grid.taken(np.flatnonzero(grid.last_ns == NEVER)) for grid in trace.calls])


def _last_step(trace: Trace, process: int, span: dict[str, Any] | None) -> int | None:
    if span and span["step"] >= 0:
        return int(span["step"])
    last = trace.steps.filter(pl.col("process") == process)["step"].max()
    return last if isinstance(last, int) else None


def _name(row: dict[str, Any]) -> str:
    if row["role"] == "worker":
        return f"rank {row['rank']}"
    return f"PS shard {row['rank'] if row['shard'] is None else row['shard']}"


def _where(span: dict[str, Any] | None, step: int | None) -> str:
    where = "" if step is None else f" in step {step}"
    if span is None:
        return where
    named = "" if span["name"] == span["kind"] else f" ({span['name']})"
    return f"{where}, inside {span['kind']}{named}"


def _some(names: list[str]) -> str:
    """Name a few of many."""
    more = " and more" if len(names) > MAX_NAMES_LISTED else ""
    return ", ".join(names[:MAX_NAMES_LISTED]) + more


def _missing(trace: Trace) -> list[Finding]:
    expected = trace.expected_ranks - trace.shards.height
    known: set[int] = set()
    if trace.shards.is_empty():  # else communicators number servers and workers together
        known = {*trace.communicators["ranks"].explode().drop_nulls()}
    asked = filter(trace.choice.has_rank, {*range(expected), *known})
    absent = sorted({*asked} - {*trace.workers["rank"]})
    if not absent or trace.workers.height == 1:  # one rank is looked at alone: the scope says so
        return []
    listed = _some([*map(str, absent)])
    plural = "s" if len(absent) > 1 else ""
    return [
        Finding.of(
            "missing_rank",
            {"ranks": f"rank{plural} {listed}", "expected": str(expected)},
            ranks=tuple(absent),
            evidence={"expected": expected, "seen": trace.workers.height},
        )
    ]


def _dropped(trace: Trace) -> list[Finding]:
    losers = trace.processes.filter(pl.col("dropped") > 0)
    if losers.is_empty():
        return []
    lost = int(losers["dropped"].sum())
    share = lost / max(lost + int(trace.processes["events"].sum()), 1)
    unasked = {reason: n for reason, n in trace.dropped.items() if reason not in CHOSEN_LOSSES}
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in unasked.items())
    return [
        Finding.of(
            "dropped_events",
            {"lost": f"{lost:,}", "reasons": reasons},
            category="fault" if share >= MIN_SHARE_DROPPED_IF_FAULT else "opportunity",
            ranks=tuple(losers["rank"].unique().sort().to_list()),
            evidence={"dropped": unasked, "share": share},
        )
    ]


def _desync(facts: Facts) -> list[Finding]:
    trace = facts.trace
    notes = [note for note in trace.notes if note.kind == "desync"]
    early = facts.early_end if notes else None
    return [
        Finding.of(
            "desync",
            {"note": note.sentence},
            more=_describe_early_end(early),
            ranks=early.ranks if early else (),
            evidence={"ended_early": list(early.ranks)} if early else {},
        )
        for note in notes
    ]


def _describe_early_end(early: EarlyEnd | None) -> list[str]:
    """Return who ended its training loop before the others, as a sentence."""
    if early is None:
        return []
    ranks = fmt.capital(fmt.listing("rank", early.ranks))
    sentence = (
        f"{ranks} ended training after step {early.last_step}, and others began step "
        f"{early.others_step}: ranks had unequal numbers of batches."
    )
    return [sentence]


def _jumps(trace: Trace) -> list[Finding]:
    """Report clocks that were set during the run; times are corrected for it, so nothing is lost."""
    return [
        Finding.of(
            "clock_jump",
            {"host": host.host, "jumps": str(len(host.jumps))},
            hosts=(host.host,),
            evidence={"jumps_ns": list(host.jumps)},
        )
        for host in trace.alignment.hosts
        if host.jumps
    ]


def _clause(blocked: dict[str, Any]) -> str:
    """Return who was blocked as a clause that follows what became of the absent rank."""
    ranks = blocked["ranks"]
    verb = "was" if len(ranks) == 1 else "were"
    waiting = fmt.listing("rank", ranks)
    return f"{waiting} {verb} blocked, since it never entered {blocked['op']} #{blocked['seq']}"


def _blocked_at_end(trace: Trace) -> list[dict[str, Any]]:
    """Return one entry for each rank that others were left waiting for, its first missed call.

    `ranks` were left in call number `seq` of an `op` in `step`, which the rank `absent` never entered.
    """
    return (
        _missed(trace)
        .filter(pl.col("end_ns").is_null() & pl.col("last_rank").is_not_null())
        .sort("seq", "rank")
        .group_by("communicator", "seq", absent="last_rank", maintain_order=True)
        .agg(ranks="rank", op=pl.col("op").cast(pl.String).first(), step=pl.col("step").max())
        .unique("absent", keep="first", maintain_order=True)
        .sort("absent")
        .to_dicts()
    )


def _hangs(facts: Facts) -> list[Finding]:
    """Report ranks that ended in good order while others waited in a collective without them."""
    trace = facts.trace
    ended = set(trace.workers.filter("complete")["rank"])
    left = [blocked for blocked in _blocked_at_end(trace) if blocked["absent"] in ended]
    early = facts.early_end if left else None
    return [
        Finding.of(
            "hang",
            {"rank": str(blocked["absent"]), "blocked": _clause(blocked)},
            more=_describe_early_end(early),
            ranks=(blocked["absent"],),
            steps=(blocked["step"], blocked["step"]) if blocked["step"] >= 0 else None,
            evidence={
                "waiting": blocked["ranks"],
                "call": blocked["seq"],
                **({"ended_early": list(early.ranks)} if early else {}),
            },
        )
        for blocked in left
    ]
