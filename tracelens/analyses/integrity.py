"""What limits the trace: ranks that are missing, were cut off, lost events, or lost step with others.

Such findings have no saving; they come first in a report, since they bound what the rest can show. Of
several processes that were cut off together, the one that the others were waiting for was first: it is
named, with the span that was open in it. Ranks that the end of the recording left blocked in a
collective tell who never entered it (`accounting/standstill.py`). Where calls do not match since a rank
ended its training loop before the others, that is said (`accounting/early_ends.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.accounting.restarts import left_behind
from tracelens.accounting.standstill import find_standstill
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.schema.vocabulary import CHOSEN_LOSSES, SEGMENTS_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.early_ends import EarlyEnd
    from tracelens.accounting.standstill import OpenCall, Root, Standstill
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace


MAX_NAMES_LISTED: Final = 8  # processes or ranks: a sentence names no more [policy]
# share of events: if fewer were dropped, what is left tells the same story [policy]
MIN_SHARE_DROPPED_IF_FAULT: Final = 0.01


@dataclass(frozen=True, eq=False)
class Integrity(DisplayMixin):
    """The findings; `open_spans` holds what each process that was cut off was in, innermost."""

    open_spans: pl.DataFrame
    findings: tuple[Finding, ...]


def run(facts: Facts) -> Integrity:
    """Look for what is not there."""
    trace = facts.trace
    spans = _open_spans(trace)
    standstill = find_standstill(trace)
    findings = [
        *_hangs(facts, standstill),
        *([] if trace.cut_short else _broken_off(trace, spans, standstill)),
        *_damaged(trace),
        *_missing(trace),
        *_desync(facts),
        *_dropped(trace),
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


def _broken_off(trace: Trace, open_spans: pl.DataFrame, standstill: Standstill) -> list[Finding]:
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
    first = _first_to_go(standstill, silent if workers.is_empty() else workers, open_spans)
    row = silent.filter(pl.col("process") == first).row(0, named=True)
    within = open_spans.filter(pl.col("process") == first)
    span = within.row(0, named=True) if within.height else None
    step = _last_step(trace, first, span)
    worker = row["role"] == "worker"
    missed = standstill.waiting_for(row["rank"]) if worker else []
    left_waiting_ranks = {rank for call in missed for rank in call.inside}
    others = silent.filter(
        (pl.col("process") != first)
        & ~((pl.col("role") == "worker") & pl.col("rank").is_in(list(left_waiting_ranks)))
    ).sort("role", "rank", descending=[True, False])
    after = [_describe_waiting(call) for call in missed]
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


def _first_to_go(standstill: Standstill, cut: pl.DataFrame, open_spans: pl.DataFrame) -> int:
    """Return the process that others were left waiting for, else the one that fell silent first."""
    process_of = dict(cut.select("rank", "process").iter_rows())
    awaited = [rank for root in standstill.roots for rank in root.ranks if rank in process_of]
    if awaited:
        return int(process_of[awaited[0]])
    communicating = open_spans.filter(pl.col("kind").is_in(["reduction", "wait", "ps"]))
    busy = cut.join(communicating, on="process", how="anti")
    candidates = busy if 0 < busy.height < cut.height else cut
    return int(candidates.sort("last_ns", nulls_last=True)["process"][0])


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
            case="snapshot" if trace.is_snapshot else "",
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
            ranks=early.ranks if early else note.ranks,
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


def _describe_waiting(call: OpenCall) -> str:
    """Return who was blocked in a call as a clause that follows what became of the absent rank."""
    verb = "was" if len(call.inside) == 1 else "were"
    waiting = fmt.listing("rank", call.inside)
    return f"{waiting} {verb} blocked, since it never entered {_name_call(call)}"


def _name_call(call: OpenCall) -> str:
    return call.op if call.seq < 0 else f"{call.op} #{call.seq}"


def _hangs(facts: Facts, standstill: Standstill) -> Iterator[Finding]:
    """Report the roots of a standstill; a root that made another call than its peers is a mismatch.

    A rank that was cut off was killed, and may have been so in the middle of its work. Of a rank without
    a dump nothing is known: it is a root only where there is no other.
    """
    trace = facts.trace
    ended = set(trace.workers.filter("complete")["rank"])
    roots = [r for r in standstill.roots if trace.is_snapshot or ended.issuperset(r.ranks)]
    roots = [root for root in roots if root.ranks[0] in ended] or roots
    roots_of: dict[tuple[str, OpenCall, tuple[int, ...]], list[Root]] = {}
    for root in roots:
        if not root.is_strayed:
            call = max(root.calls, key=lambda one: (len(one.inside), -one.seq))
            case = _name_case(trace, root)
            apart = root.ranks if case in {"", "circle"} else ()
            roots_of.setdefault((case, call, apart), []).append(root)
    for (case, call, _), found in roots_of.items():
        yield _hang(facts, standstill, case, call, found)
    stuck = [call for call in standstill.calls if call.inside and not call.awaited]
    if trace.is_snapshot and stuck and not standstill.roots:
        yield _call_without_root(trace, stuck[0])


def _name_case(trace: Trace, root: Root) -> str:
    """Return which sentence suits a root: of a circle, or, among dumps, by that of its rank."""
    if len(root.ranks) > 1:
        return "circle"
    if not trace.is_snapshot:
        return ""
    events = trace.workers.filter(pl.col("rank") == root.ranks[0])["events"]
    return "no dump" if events.is_empty() else "snapshot" if events[0] else "no call"


def _hang(
    facts: Facts, standstill: Standstill, case: str, call: OpenCall, roots: list[Root]
) -> Finding:
    trace, early = facts.trace, facts.early_end
    ranks = tuple(sorted(rank for root in roots for rank in root.ranks))
    victims = sorted({rank for root in roots for rank in root.victims})
    fields = {
        "": {"rank": str(ranks[0]), "blocked": _describe_waiting(call)},
        "circle": {"ranks": fmt.listing("rank", ranks), "calls": _circle(roots[0])},
    }.get(case) or {
        "ranks": fmt.capital(fmt.listing("rank", ranks)),
        "waiting": _name_waiting(call),
        "call": _place_call(trace, call),
    }
    elsewhere = [one for one in standstill.calls if {*ranks} <= {*one.inside}]
    more = _describe_early_end(early)
    more += [f"It is in {_place_call(trace, one)} itself." for one in elsewhere[:1]]
    others = len({*victims} - {*call.inside})
    if others:
        more.append(
            f"{fmt.count(others, 'more rank')} {'waits' if others == 1 else 'wait'} in turn."
        )
    return Finding.of(
        "hang",
        fields,
        case=case,
        more=more,
        ranks=ranks,
        steps=(call.step, call.step) if call.step >= 0 else None,
        evidence={
            "waiting": list(call.inside),
            "call": call.seq,
            "victims": victims,
            **({"ended_early": list(early.ranks)} if early else {}),
        },
    )


def _circle(root: Root) -> str:
    """Return in which calls the ranks of a circle wait for each other, the first few."""
    parts = []
    for rank in root.ranks[: fmt.MOST_LISTED]:
        call = next((one for one in root.calls if rank in one.inside), None)
        if call is None:
            continue
        others = sorted({*call.awaited} & {*root.ranks})
        parts.append(f"rank {rank} in {_name_call(call)} for {fmt.listing('rank', others)}")
    return "; ".join(parts)


def _call_without_root(trace: Trace, call: OpenCall) -> Finding:
    """Report a call that lacks no rank that is known of; ranks that entered nothing may belong to it."""
    silent = tuple(trace.workers.filter(pl.col("events") == 0)["rank"])
    where = {"call": _place_call(trace, call)}
    fields = {"ranks": fmt.listing("rank", call.inside)}
    if silent:
        fields = {
            "ranks": fmt.capital(fmt.listing("rank", silent)),
            "waiting": _name_waiting(call),
        }
    return Finding.of(
        "hang",
        where | fields,
        case="no call" if silent else "call",
        ranks=silent,
        evidence={"waiting": list(call.inside), "call": call.seq},
    )


def _name_waiting(call: OpenCall) -> str:
    return f"{fmt.listing('rank', call.inside)} {'waits' if len(call.inside) == 1 else 'wait'}"


def _place_call(trace: Trace, call: OpenCall) -> str:
    """Name a call and its group."""
    found = trace.communicators.filter(pl.col("communicator").cast(pl.String) == call.communicator)
    group = found["name"][0] if found.height else call.communicator
    return f"{_name_call(call)} of group {group}"
