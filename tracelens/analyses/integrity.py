"""What limits the trace: ranks that are missing, were cut off, lost events, or lost step with others.

Such findings have no saving; they come first in a report, since they bound what the rest can show
(docs/analyses/integrity-and-membership.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.accounting.restarts import find_left_behind
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
# share of events: if fewer were dropped, the findings are the same [policy]
MIN_SHARE_DROPPED_IF_FAULT: Final = 0.01
# ns: a rank that recorded nothing for so long before it was ended was hanging [policy]
MIN_SILENCE_OF_HANG_NS: Final = 5_000_000_000


@dataclass(frozen=True, eq=False)
class Integrity(DisplayMixin):
    """The findings; `open_spans` holds the innermost open span of each process that was cut off."""

    open_spans: pl.DataFrame
    findings: tuple[Finding, ...]


def run(facts: Facts) -> Integrity:
    """Report what is not in the trace."""
    trace = facts.trace
    open_spans, standstill = _find_open_spans(trace), find_standstill(trace)
    findings = [
        *_report_hangs(facts, standstill),
        *([] if trace.cut_short else _report_end(facts, open_spans, standstill)),
        *_report_damaged(trace),
        *_report_missing(trace),
        *_report_mismatches(facts),
        *_report_dropped(trace),
        *_report_clock_jumps(trace),
    ]
    return Integrity(open_spans, tuple(findings))


def _find_open_spans(trace: Trace) -> pl.DataFrame:
    """Return a row per main process that did not end by itself: its innermost open span."""
    cut_off = trace.processes.filter(pl.col("main") & ~pl.col("complete"))
    in_flight = trace.threads.filter("in_flight").select("process", "thread")
    return (
        trace.opened.lazy()
        .filter(pl.col("kind") != "step")
        .join(cut_off.select("process").lazy(), on="process", how="semi")
        .join(in_flight.lazy(), on=["process", "thread"], how="anti")
        .sort("process", "start_ns", "depth")
        .group_by("process", "role", "rank", maintain_order=True)
        .agg(pl.col("kind", "op", "name", "step", "start_ns", "communicator", "seq").last())
        .collect()
    )


def _report_damaged(trace: Trace) -> list[Finding]:
    """Report files whose end is missing: the process may have run on."""
    files = [note.file for note in trace.notes if note.kind == "truncated"]
    processes = trace.processes.filter(pl.col("main") & pl.col("file").is_in(files))
    return [
        Finding.of(
            "truncated_trace",
            {"who": _name_process(process), "events": f"{process['events']:,}"},
            case="damaged",
            **_identify(process),
            evidence={"file": process["file"], "events": process["events"]},
        )
        for process in processes.iter_rows(named=True)
    ]


def _identify(process: dict[str, Any]) -> dict[str, Any]:
    """Return the rank or shard, and the host, of a process."""
    is_server, shard = process["role"] == "ps", process["shard"]
    return {
        "ranks": () if is_server else (process["rank"],),
        "shards": (shard,) if is_server and shard is not None else (),
        "hosts": (process["host"],),
    }


def _report_end(facts: Facts, open_spans: pl.DataFrame, standstill: Standstill) -> list[Finding]:
    """Report how the last attempt ended, if not by itself: in a hang, by a failure, or cut off."""
    failures = facts.failures
    if not failures or all(one.cause == "gone" for one in failures):
        return _report_cut_off(facts.trace, open_spans, standstill)
    hang = _find_ended_hang(facts, standstill)
    return [hang or _report_crash(facts, open_spans, standstill)]


def _find_ended_hang(facts: Facts, standstill: Standstill) -> Finding | None:
    """Report the hang of a job that was ended from outside: ranks waited long for a silent one."""
    ended_ns = {one.rank: one for one in facts.failures if one.is_echo}
    roots = [root for root in standstill.roots if len(root.ranks) == 1 and not root.is_strayed]
    if len(ended_ns) < len(facts.failures) or not roots or roots[0].ranks[0] not in ended_ns:
        return None
    (rank,) = roots[0].ranks
    failure = ended_ns[rank]
    last_ns = facts.trace.workers.filter(pl.col("rank") == rank)["last_ns"][0]
    silent_ns = failure.at_ns - last_ns
    call = max(roots[0].calls, key=lambda call: (len(call.inside), -call.seq))
    if silent_ns < MIN_SILENCE_OF_HANG_NS:
        return None
    frame = f"; it was in {failure.user_frame} then" if failure.user_frame else ""
    return Finding.of(
        "hang",
        {
            "ranks": f"Rank {rank}",
            "call": _name_call_of_group(facts.trace, call),
            "waiting": _name_waiting(call),
            "silence": fmt.duration(silent_ns),
            "cause": failure.cause,
            "frame": frame,
        },
        case="ended",
        ranks=(rank,),
        steps=(call.step, call.step) if call.step >= 0 else None,
        function=failure.user_frame,
        evidence={
            "waiting": list(call.inside),
            "call": call.seq,
            "silent_ns": silent_ns,
            "frames": list(failure.frames),
        },
    )


def _report_crash(facts: Facts, open_spans: pl.DataFrame, standstill: Standstill) -> Finding:
    """Report the failure that explains the others."""
    first, *others = facts.failures
    process = facts.trace.processes.filter(pl.col("process") == first.process).row(0, named=True)
    span = next(open_spans.filter(pl.col("process") == first.process).iter_rows(named=True), None)
    step = _find_last_step(facts.trace, first.process, span)
    calls = standstill.waiting_for(first.rank)
    consequences = [_describe_blocked(call) for call in calls[:1]]
    if others:
        ended = fmt.listing("rank", [one.rank for one in others])
        causes = fmt.series(list(dict.fromkeys(one.cause for one in others)))
        consequences.append(f"{ended} ended after it ({causes})")
    return Finding.of(
        "crash",
        {
            "who": fmt.capital(_name_process(process)),
            "where": _describe_location(span, step),
            "cause": first.text,
            "others": "".join(f"; {text}" for text in consequences),
        },
        **_identify(process),
        phase=span["kind"] if span else None,
        steps=None if step is None else (step, step),
        function=first.user_frame,
        evidence={
            "cause": first.cause,
            "message": first.message,
            "frames": list(first.frames),
            "is_out_of_memory": first.is_out_of_memory,
            "ended_after": {str(one.rank): one.cause for one in others},
        },
    )


def _report_cut_off(
    trace: Trace, open_spans: pl.DataFrame, standstill: Standstill
) -> list[Finding]:
    """Report the process that broke off first; what restarts left behind is in `membership.py`."""
    explained = [note.file for note in trace.notes if note.kind in {"truncated", "running"}]
    cut_off = trace.processes.filter(
        pl.col("main")
        & ~pl.col("complete")
        & ~pl.col("file").is_in(explained)
        & ~pl.col("process").is_in(find_left_behind(trace))
    )
    if cut_off.is_empty():
        return []
    workers = cut_off.filter(pl.col("role") == "worker")
    first_process = _find_first(standstill, cut_off if workers.is_empty() else workers, open_spans)
    process = cut_off.filter(pl.col("process") == first_process).row(0, named=True)
    span = next(open_spans.filter(pl.col("process") == first_process).iter_rows(named=True), None)
    step = _find_last_step(trace, first_process, span)
    calls = standstill.waiting_for(process["rank"]) if process["role"] == "worker" else []
    waiting = {rank for call in calls for rank in call.inside}
    is_waiting = (pl.col("role") == "worker") & pl.col("rank").is_in(list(waiting))
    other_processes = cut_off.filter((pl.col("process") != first_process) & ~is_waiting)
    consequences = [_describe_blocked(call) for call in calls]
    if other_processes.height:
        ordered = other_processes.sort("role", "rank", descending=[True, False])
        names = [_name_process(other) for other in ordered.iter_rows(named=True)]
        consequences.append(f"{_list_some(names)} ended after it")
    if trace.choice.ranks is not None:
        consequences.append("ranks that were left out may have ended before it")
    may_run_on = process["file"].endswith(SEGMENTS_SUFFIX)
    return [
        Finding.of(
            "truncated_trace",
            {
                "who": fmt.capital(_name_process(process)),
                "where": _describe_location(span, step),
                "elsewhere": ", or still running on its host" if may_run_on else "",
                "after": "".join(f"; {text}" for text in consequences),
            },
            **_identify(process),
            phase=span["kind"] if span else None,
            steps=None if step is None else (step, step),
            function=span["name"] if span else None,
            evidence={
                "file": process["file"],
                "broken_off": cut_off["file"].to_list(),
                "waiting": sorted(waiting),
            },
        )
    ]


def _find_first(standstill: Standstill, cut_off: pl.DataFrame, open_spans: pl.DataFrame) -> int:
    """Return the process that others were left waiting for, else the one that fell silent first."""
    process_of = dict(cut_off.select("rank", "process").iter_rows())
    awaited_ranks = [rank for root in standstill.roots for rank in root.ranks if rank in process_of]
    if awaited_ranks:
        return int(process_of[awaited_ranks[0]])
    communicating_spans = open_spans.filter(pl.col("kind").is_in(["reduction", "wait", "ps"]))
    not_communicating = cut_off.join(communicating_spans, on="process", how="anti")
    candidates = not_communicating if 0 < not_communicating.height < cut_off.height else cut_off
    return int(candidates.sort("last_ns", nulls_last=True)["process"][0])


def _find_last_step(trace: Trace, process: int, span: dict[str, Any] | None) -> int | None:
    if span and span["step"] >= 0:
        return int(span["step"])
    last = trace.steps.filter(pl.col("process") == process)["step"].max()
    return last if isinstance(last, int) else None


def _name_process(process: dict[str, Any]) -> str:
    if process["role"] == "worker":
        return f"rank {process['rank']}"
    return f"PS shard {process['rank'] if process['shard'] is None else process['shard']}"


def _describe_location(span: dict[str, Any] | None, step: int | None) -> str:
    """Describe in which step and span a process broke off, as the end of a sentence."""
    in_step = "" if step is None else f" in step {step}"
    if span is None:
        return in_step
    name = "" if span["name"] == span["kind"] else f" ({span['name']})"
    return f"{in_step}, inside {span['kind']}{name}"


def _list_some(names: list[str]) -> str:
    more = " and more" if len(names) > MAX_NAMES_LISTED else ""
    return ", ".join(names[:MAX_NAMES_LISTED]) + more


def _report_missing(trace: Trace) -> list[Finding]:
    """Report worker ranks that the job has, and the trace lacks, though none was left out."""
    expected_count = trace.expected_ranks - trace.shards.height
    communicating_ranks: set[int] = set()
    if trace.shards.is_empty():  # else communicators number servers and workers together
        communicating_ranks = {*trace.communicators["ranks"].explode().drop_nulls()}
    chosen_ranks = filter(trace.choice.has_rank, {*range(expected_count), *communicating_ranks})
    absent_ranks = sorted({*chosen_ranks} - {*trace.workers["rank"]})
    if not absent_ranks or trace.workers.height == 1:  # of a single rank, the scope says it
        return []
    plural = "s" if len(absent_ranks) > 1 else ""
    ranks = f"rank{plural} {_list_some([*map(str, absent_ranks)])}"
    return [
        Finding.of(
            "missing_rank",
            {"ranks": ranks, "expected": str(expected_count)},
            case="snapshot" if trace.is_snapshot else "",
            ranks=tuple(absent_ranks),
            evidence={"expected": expected_count, "seen": trace.workers.height},
        )
    ]


def _report_dropped(trace: Trace) -> list[Finding]:
    """Report processes that dropped events, a fault if those are more than a small share."""
    lossy_processes = trace.processes.filter(pl.col("dropped") > 0)
    if lossy_processes.is_empty():
        return []
    lost_count = int(lossy_processes["dropped"].sum())
    lost_share = lost_count / max(lost_count + int(trace.processes["events"].sum()), 1)
    lost_by_reason = {
        reason: n for reason, n in trace.dropped.items() if reason not in CHOSEN_LOSSES
    }
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in lost_by_reason.items())
    return [
        Finding.of(
            "dropped_events",
            {"lost": f"{lost_count:,}", "reasons": reasons},
            category="fault" if lost_share >= MIN_SHARE_DROPPED_IF_FAULT else "opportunity",
            ranks=tuple(lossy_processes["rank"].unique().sort().to_list()),
            evidence={"dropped": lost_by_reason, "share": lost_share},
        )
    ]


def _report_mismatches(facts: Facts) -> list[Finding]:
    """Report that ranks made different calls, with the ranks that ended training early, if any."""
    notes = [note for note in facts.trace.notes if note.kind == "desync"]
    early_end = facts.early_end if notes else None
    return [
        Finding.of(
            "desync",
            {"note": note.sentence},
            more=_describe_early_end(early_end),
            ranks=early_end.ranks if early_end else note.ranks,
            evidence={"ended_early": list(early_end.ranks)} if early_end else {},
        )
        for note in notes
    ]


def _describe_early_end(early_end: EarlyEnd | None) -> list[str]:
    """Describe in a sentence which ranks ended training before the others."""
    if early_end is None:
        return []
    ranks = fmt.capital(fmt.listing("rank", early_end.ranks))
    last_step, others_step = early_end.last_step, early_end.others_step
    clause = f"{ranks} ended training after step {last_step}, and others began step {others_step}"
    return [f"{clause}: ranks had unequal numbers of batches."]


def _report_clock_jumps(trace: Trace) -> list[Finding]:
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


def _describe_blocked(call: OpenCall) -> str:
    """Describe which ranks a call blocked, as a clause that follows what became of the absent rank."""
    were = "was" if len(call.inside) == 1 else "were"
    ranks = fmt.listing("rank", call.inside)
    return f"{ranks} {were} blocked, since it never entered {_name_call(call)}"


def _name_call(call: OpenCall) -> str:
    return call.op if call.seq < 0 else f"{call.op} #{call.seq}"


def _report_hangs(facts: Facts, standstill: Standstill) -> Iterator[Finding]:
    """Report the roots of a standstill; a root that made another call than its peers is a mismatch.

    A rank that was cut off may have been killed in the middle of its work. A rank without a dump is a
    root only if no other rank is a root.
    """
    trace = facts.trace
    complete_ranks = set(trace.workers.filter("complete")["rank"])
    roots = [r for r in standstill.roots if trace.is_snapshot or complete_ranks.issuperset(r.ranks)]
    roots = [root for root in roots if root.ranks[0] in complete_ranks] or roots
    # Roots with one sentence, by case, call, and, where each has its own sentence, ranks.
    groups: dict[tuple[str, OpenCall, tuple[int, ...]], list[Root]] = {}
    for root in roots:
        if not root.is_strayed:
            call = max(root.calls, key=lambda call: (len(call.inside), -call.seq))
            case = _choose_case(trace, root)
            own_ranks = root.ranks if case in {"", "circle"} else ()
            groups.setdefault((case, call, own_ranks), []).append(root)
    for (case, call, _), group in groups.items():
        yield _report_hang(facts, standstill, case, call, group)
    stuck_calls = [call for call in standstill.calls if call.inside and not call.awaited]
    if trace.is_snapshot and stuck_calls and not standstill.roots:
        yield _report_call_without_root(trace, stuck_calls[0])


def _choose_case(trace: Trace, root: Root) -> str:
    """Choose the sentence for a root: of a circle, or, among dumps, by that of its rank."""
    if len(root.ranks) > 1:
        return "circle"
    if not trace.is_snapshot:
        return ""
    events = trace.workers.filter(pl.col("rank") == root.ranks[0])["events"]
    return "no dump" if events.is_empty() else "snapshot" if events[0] else "no call"


def _report_hang(
    facts: Facts, standstill: Standstill, case: str, call: OpenCall, roots: list[Root]
) -> Finding:
    """Report ranks that others wait for in a call, as `case` says; `roots` have one sentence."""
    trace, early_end = facts.trace, facts.early_end
    ranks = tuple(sorted(rank for root in roots for rank in root.ranks))
    victims = sorted({rank for root in roots for rank in root.victims})
    fields = {
        "": {"rank": str(ranks[0]), "blocked": _describe_blocked(call)},
        "circle": {"ranks": fmt.listing("rank", ranks), "calls": _describe_circle(roots[0])},
    }.get(case) or {
        "ranks": fmt.capital(fmt.listing("rank", ranks)),
        "waiting": _name_waiting(call),
        "call": _name_call_of_group(trace, call),
    }
    sentences = _describe_early_end(early_end)
    own_calls = [own_call for own_call in standstill.calls if {*ranks} <= {*own_call.inside}]
    sentences += [
        f"It is in {_name_call_of_group(trace, own_call)} itself." for own_call in own_calls[:1]
    ]
    further_count = len({*victims} - {*call.inside})
    if further_count:
        verb = "waits" if further_count == 1 else "wait"
        sentences.append(f"{fmt.count(further_count, 'more rank')} {verb} in turn.")
    return Finding.of(
        "hang",
        fields,
        case=case,
        more=sentences,
        ranks=ranks,
        steps=(call.step, call.step) if call.step >= 0 else None,
        evidence={
            "waiting": list(call.inside),
            "call": call.seq,
            "victims": victims,
            **({"ended_early": list(early_end.ranks)} if early_end else {}),
        },
    )


def _describe_circle(root: Root) -> str:
    """Describe in which calls the first few ranks of a circle wait for each other."""
    clauses = []
    for rank in root.ranks[: fmt.MOST_LISTED]:
        call = next((call for call in root.calls if rank in call.inside), None)
        if call is not None:
            other_ranks = fmt.listing("rank", sorted({*call.awaited} & {*root.ranks}))
            clauses.append(f"rank {rank} in {_name_call(call)} for {other_ranks}")
    return "; ".join(clauses)


def _report_call_without_root(trace: Trace, call: OpenCall) -> Finding:
    """Report a call that lacks no known rank; ranks that entered nothing may belong to it."""
    silent_ranks = tuple(trace.workers.filter(pl.col("events") == 0)["rank"])
    fields = {"ranks": fmt.listing("rank", call.inside)}
    if silent_ranks:
        rank_text = fmt.capital(fmt.listing("rank", silent_ranks))
        fields = {"ranks": rank_text, "waiting": _name_waiting(call)}
    return Finding.of(
        "hang",
        fields | {"call": _name_call_of_group(trace, call)},
        case="no call" if silent_ranks else "call",
        ranks=silent_ranks,
        evidence={"waiting": list(call.inside), "call": call.seq},
    )


def _name_waiting(call: OpenCall) -> str:
    return f"{fmt.listing('rank', call.inside)} {'waits' if len(call.inside) == 1 else 'wait'}"


def _name_call_of_group(trace: Trace, call: OpenCall) -> str:
    uid = pl.col("communicator").cast(pl.String)
    groups = trace.communicators.filter(uid == call.communicator)
    group = groups["name"][0] if groups.height else call.communicator
    return f"{_name_call(call)} of group {group}"
