"""How the reported attempt of a job ended, if not by itself: in a hang, by a failure, or cut off.

It is the last one with steps. Later attempts may have failed before their first step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelens.accounting.life.attempts import find_process_offset_ns
from tracelens.accounting.life.failed_attempts import (
    FailedStep,
    find_failed_step,
    is_common_failure,
)
from tracelens.accounting.life.failures import MAX_APART_OF_ECHO_NS
from tracelens.accounting.life.ledger import min_hang_ns
from tracelens.accounting.standstill import find_standstill
from tracelens.accounting.watched_stalls import choose_frame
from tracelens.analyses.integrity.hangs import find_circle
from tracelens.analyses.integrity.wording import (
    describe_blocked,
    describe_location,
    identify,
    list_some,
    name_call_of_group,
    name_process,
    name_waiting,
)
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.schema.life import Stalled
from tracelens.schema.vocabulary import SEGMENTS_SUFFIX

if TYPE_CHECKING:
    from tracelens.accounting.standstill import Root, Standstill
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace


def report_end(facts: Facts, open_spans: pl.DataFrame, standstill: Standstill) -> list[Finding]:
    """Report how the reported attempt ended, if not by itself, and how later ones failed.

    `open_spans` has one row per span that was open when recording ended.
    """
    findings = _report_end_of_attempt(facts, open_spans, standstill)
    later_failures = _find_later_failures(facts)
    if not later_failures:
        return findings
    number, failure = max(later_failures.items())
    if not findings:
        return [_report_failed_start(number, failure)]
    finding, *other_findings = findings
    sentence = f"{finding.sentence.removesuffix('.')}; in attempt {number} {failure}."
    return [replace(finding, sentence=sentence), *other_findings]


def _find_later_failures(facts: Facts) -> dict[int, str]:
    """Return how attempts after the reported one failed, by number."""
    if facts.life_ledger is None or facts.reported_attempt is None:
        return {}
    return facts.life_ledger.find_later_failures(facts.reported_attempt)


def _report_failed_start(number: int, failure: str) -> Finding:
    """Report that an attempt failed before its first step, after one that ended well.

    `failure` says how, as a predicate.
    """
    return Finding.of(
        "crash",
        {"attempt": str(number), "failure": failure},
        case="start",
        evidence={"attempt": number, "failure": failure},
    )


def _report_end_of_attempt(
    facts: Facts, open_spans: pl.DataFrame, standstill: Standstill
) -> list[Finding]:
    """Report how the reported attempt ended: in a hang, by a failure, or cut off.

    `open_spans` has one row per span that was open when recording ended.
    """
    failures = facts.failures
    if failures and not standstill.calls and all(failure.is_echo for failure in failures):
        # An exception closes calls: ranks whose last call failed waited in it.
        standstill = find_standstill(facts.trace, is_interrupted=True)
    if any(note.kind == "desync" for note in facts.trace.notes) and any(
        call.strayed_ranks for call in standstill.calls
    ):
        return []  # calls that do not match are reported as such
    hang = _find_running_hang(facts, standstill)
    if hang is not None:
        return [hang]
    if not failures or all(failure.cause == "unknown" for failure in failures):
        return _report_cut_off(facts.trace, open_spans, standstill)
    finding = (
        _find_ended_hang(facts, standstill)
        or _find_rank_that_left(facts)
        or _find_silence(facts, standstill)
        or _find_outer_end(facts)
        or _report_crash(facts, open_spans, standstill)
    )
    return [finding]


def _find_ended_hang(facts: Facts, standstill: Standstill) -> Finding | None:
    """Report a hang that was ended from outside, or by a time limit: ranks waited for a silent one."""
    echo_by_rank = {failure.rank: failure for failure in facts.failures if failure.is_echo}
    root = _find_silent_root(standstill)
    if len(echo_by_rank) < len(facts.failures) or root is None:
        return None
    rank = root.ranks[0]
    failure = echo_by_rank.get(rank)
    last_ns = _find_last_sign_ns(facts.trace, rank)
    if failure is None or last_ns is None:
        return None
    silent_ns = failure.at_ns - last_ns
    if not _is_hang(facts.trace, silent_ns):
        return None
    stall = _find_stall(facts.trace, rank)
    frames = list(failure.frames) or _list_frames(stall, rank)
    code = failure.user_frame or choose_frame(frames)
    clauses = _describe_silence(facts.trace, stall, rank, code)
    fields = {"silence": fmt.duration(silent_ns), "cause": failure.cause, "frame": clauses}
    return _report_silent_root(facts.trace, root, "ended", fields, frames)


def _find_running_hang(facts: Facts, standstill: Standstill) -> Finding | None:
    """Report a hang of a job that is still recorded: no rank has recorded anything for long."""
    trace, root = facts.trace, _find_silent_root(standstill)
    if trace.read_at_ns is None:
        return None
    offset_ns = find_process_offset_ns(trace, int(trace.workers["process"][0]))
    if offset_ns is None:
        return None
    last_ns = trace.workers["last_ns"].max()
    assert isinstance(last_ns, int)
    silent_ns = trace.read_at_ns + offset_ns - last_ns
    if not _is_hang(trace, silent_ns):
        return None
    if root is None:
        return _find_unrecorded(trace, standstill, silent_ns, end_text="")
    rank = root.ranks[0]
    stall = _find_stall(trace, rank)
    frames = _list_frames(stall, rank)
    clauses = _describe_silence(trace, stall, rank, choose_frame(frames))
    fields = {"silence": fmt.duration(silent_ns), "frame": clauses}
    return _report_silent_root(trace, root, "running", fields, frames)


def _is_hang(trace: Trace, silent_ns: int) -> bool:
    """Return True if a silence is too long for the steps of a run."""
    step_ns = (trace.steps["end_ns"] - trace.steps["start_ns"]).median() or 0
    assert isinstance(step_ns, (int, float))
    return silent_ns >= min_hang_ns(step_ns)


def _find_stall(trace: Trace, rank: int) -> Stalled | None:
    """Return the last stall that a watch has seen of a rank; None if none has."""
    stalls = [
        entry for entry in trace.journal if isinstance(entry, Stalled) and rank in entry.culprits
    ]
    return stalls[-1] if stalls else None


def _list_frames(stall: Stalled | None, rank: int) -> list[str]:
    return stall.stacks.get(str(rank), []) if stall else []


def _describe_silence(trace: Trace, stall: Stalled | None, rank: int, frame: str) -> str:
    """Describe what a silent rank did, as clauses: its code (`frame`), its state, a failed thread."""
    is_complete = trace.workers.filter(pl.col("rank") == rank)["complete"].any()
    clauses = ["its recording had ended"] if is_complete else []
    clauses += [f"it was in {frame}"] if frame else []
    if stall is not None and stall.states.get(str(rank)) == "stopped":
        clauses.append("its process was stopped")
    processes = trace.workers.filter(pl.col("rank") == rank)["process"].implode()
    threads = trace.endings.filter(
        pl.col("process").is_in(processes) & pl.col("thread").is_not_null()
    )
    clauses += [
        f"its thread {thread} had failed of {cause}{f' ({message})' if message else ''}"
        for thread, cause, message in threads.select("thread", "cause", "message").head(1).rows()
    ]
    return "".join(f"; {clause}" for clause in clauses)


def _find_silent_root(standstill: Standstill) -> Root | None:
    """Return the single rank that most ranks wait for and that entered no other call, or None."""
    roots = [root for root in standstill.roots if len(root.ranks) == 1 and not root.is_strayed]
    return roots[0] if roots else None


def _find_last_sign_ns(trace: Trace, rank: int) -> int | None:
    """Return when a rank last began a span, or ended one by itself: an exception ends all open ones.

    None if it recorded no event.
    """
    ends_ns = pl.col("end_ns").filter(pl.col("status").cast(pl.String) == "closed")
    signs_ns = pl.max_horizontal(pl.col("start_ns").max(), ends_ns.max())
    sign_ns = trace.events.filter(pl.col("rank") == rank).select(signs_ns).collect().item()
    return None if sign_ns is None else int(sign_ns)


def _report_silent_root(
    trace: Trace, root: Root, case: str, fields: dict[str, str], frames: list[str]
) -> Finding:
    """Report a rank that others wait for; `frames` is its stack, innermost first, if that is known."""
    call = root.largest_call
    return Finding.of(
        "hang",
        {
            "ranks": f"Rank {root.ranks[0]}",
            "call": name_call_of_group(trace, call),
            "waiting": name_waiting(call, is_over=case == "ended"),
            **fields,
        },
        case=case,
        ranks=root.ranks,
        steps=(call.step, call.step) if call.step >= 0 else None,
        evidence={"waiting": list(call.ranks_inside), "call": call.seq, "frames": frames},
    )


def _find_rank_that_left(facts: Facts) -> Finding | None:
    """Report a rank that ended by itself, before the others were ended for want of it."""
    assert facts.reported_attempt
    failures = facts.failures
    failed_ns = min(failure.at_ns for failure in failures)
    early_lives = [
        life
        for life in facts.reported_attempt.lives
        if life.is_ended
        and life.failed_ns is None
        and life.end_ns <= failed_ns + MAX_APART_OF_ECHO_NS
    ]
    if not early_lives or not all(failure.is_echo for failure in failures):
        return None
    first_life = min(early_lives, key=lambda life: (life.end_ns, life.rank))
    step, where = _find_last_step(facts.trace, first_life.process)
    return Finding.of(
        "crash",
        {
            "who": f"Rank {first_life.rank}",
            "where": where,
            "others": fmt.listing("rank", [failure.rank for failure in failures]),
            "causes": fmt.join_words(list(dict.fromkeys(failure.cause for failure in failures))),
        },
        case="left",
        ranks=(first_life.rank,),
        steps=None if step is None else (step, step),
        evidence={"ended_after": {str(failure.rank): failure.cause for failure in failures}},
    )


def _find_silence(facts: Facts, standstill: Standstill) -> Finding | None:
    """Report that all ranks had been silent for long when the job was ended."""
    failures, trace = facts.failures, facts.trace
    if not all(failure.is_ordered for failure in failures):
        return None
    signs_ns = [_find_last_sign_ns(trace, failure.rank) for failure in failures]
    last_ns = max((sign_ns for sign_ns in signs_ns if sign_ns is not None), default=None)
    if last_ns is None:
        return None
    silent_ns = min(failure.at_ns for failure in failures) - last_ns
    if not _is_hang(trace, silent_ns):
        return None
    causes = fmt.join_words(list(dict.fromkeys(failure.cause for failure in failures)))
    end_text = f" until the job was ended ({causes})"
    known_hang = _find_unrecorded(trace, standstill, silent_ns, end_text) or find_circle(
        facts, standstill
    )
    if known_hang is not None:
        return known_hang
    failure_of_lowest_rank = min(failures, key=lambda failure: failure.rank)
    ranks = tuple(sorted(failure.rank for failure in failures))
    clause = (
        f"; rank {failure_of_lowest_rank.rank} was in {failure_of_lowest_rank.user_frame}"
        if failure_of_lowest_rank.user_frame
        else ""
    )
    return Finding.of(
        "hang",
        {
            "ranks": fmt.capital(fmt.listing("rank", ranks)),
            "silence": fmt.duration(silent_ns),
            "cause": causes,
            "frame": clause,
        },
        case="silent",
        ranks=ranks,
        function=failure_of_lowest_rank.user_frame,
        evidence={"silent_ns": silent_ns, "frames": list(failure_of_lowest_rank.frames)},
    )


def _find_unrecorded(
    trace: Trace, standstill: Standstill, silent_ns: int, end_text: str
) -> Finding | None:
    """Report ranks that left no recording, where all others are in a call that these belong to.

    Args:
        trace: The run.
        standstill: The calls in which ranks wait.
        silent_ns: For how long no rank had recorded anything.
        end_text: How the job was ended, as the end of a sentence; empty if it still stands.
    """
    recorded_ranks = {*trace.workers["rank"].to_list()}
    ranks_by_uid = dict(
        trace.communicators.select(pl.col("communicator").cast(pl.String), "ranks").iter_rows()
    )
    for call in standstill.calls:
        absent_ranks = sorted({*ranks_by_uid.get(call.communicator, ())} - recorded_ranks)
        if absent_ranks and recorded_ranks <= {*call.ranks_inside}:
            return Finding.of(
                "hang",
                {
                    "ranks": fmt.capital(fmt.listing("rank", absent_ranks)),
                    "waiting": name_waiting(call, is_over=bool(end_text)),
                    "call": name_call_of_group(trace, call),
                    "silence": fmt.duration(silent_ns),
                    "end": end_text,
                },
                case="unrecorded",
                ranks=tuple(absent_ranks),
                evidence={"waiting": list(call.ranks_inside), "call": call.seq},
            )
    return None


def _find_outer_end(facts: Facts) -> Finding | None:
    """Report that the job was ended from outside: all its ranks got such an order."""
    assert facts.reported_attempt
    failures, lives = facts.failures, facts.reported_attempt.lives
    if len(failures) < len(lives) or not all(failure.is_ordered for failure in failures):
        return None
    _, where = _find_last_step(facts.trace, failures[0].process)
    causes = fmt.join_words(list(dict.fromkeys(failure.cause for failure in failures)))
    return Finding.of(
        "ended_from_outside",
        {"cause": causes, "where": where},
        ranks=tuple(sorted(failure.rank for failure in failures)),
        evidence={"causes": {str(failure.rank): failure.cause for failure in failures}},
    )


def _report_crash(facts: Facts, open_spans: pl.DataFrame, standstill: Standstill) -> Finding:
    """Report the failure that explains the others.

    `open_spans` has one row per span that was open when recording ended.
    """
    failure, *later_failures = facts.failures
    process = facts.trace.processes.filter(pl.col("process") == failure.process).row(0, named=True)
    span = next(open_spans.filter(pl.col("process") == failure.process).iter_rows(named=True), None)
    step, step_text = find_failed_step(facts.trace, failure.process)
    where = step_text + describe_location(span)
    assert facts.life_ledger
    assert facts.reported_attempt
    is_common = is_common_failure(facts.failures, facts.reported_attempt)
    calls = standstill.find_calls_awaiting(failure.rank)
    all_ranks = tuple(sorted(failure.rank for failure in facts.failures))
    consequences = [describe_blocked(call) for call in calls[:1]]
    if later_failures:
        ended = fmt.listing("rank", [victim.rank for victim in later_failures])
        causes = fmt.join_words(list(dict.fromkeys(victim.cause for victim in later_failures)))
        consequences.append(f"{ended} ended after it ({causes})")
    fields = {"count": str(len(all_ranks)), "where": where, "cause": failure.text}
    if not is_common:
        del fields["count"]
        fields["who"] = fmt.capital(name_process(process))
        fields["others"] = "".join(f"; {text}" for text in consequences)
    return Finding.of(
        "crash",
        fields,
        case="all" if is_common else "",
        **identify(process) | ({"ranks": all_ranks, "hosts": ()} if is_common else {}),
        phase=span["kind"] if span else None,
        steps=None if step is None else (step, step),
        function=failure.user_frame,
        evidence={
            "cause": failure.cause,
            "message": failure.message,
            "frames": list(failure.frames),
            "is_out_of_memory": failure.is_out_of_memory,
            "ended_after": {}
            if is_common
            else {str(victim.rank): victim.cause for victim in later_failures},
            "is_common": is_common,
        },
    )


def _report_cut_off(
    trace: Trace, open_spans: pl.DataFrame, standstill: Standstill
) -> list[Finding]:
    """Report the process that broke off first."""
    explained_files = [note.file for note in trace.notes if note.kind in {"truncated", "running"}]
    cut_off = trace.processes.filter(
        pl.col("main") & ~pl.col("complete") & ~pl.col("file").is_in(explained_files)
    )
    if cut_off.is_empty():
        return []
    workers = cut_off.filter(pl.col("role") == "worker")
    candidates = cut_off if workers.is_empty() else workers
    first_process = _find_first_process(standstill, candidates, open_spans)
    process = cut_off.filter(pl.col("process") == first_process).row(0, named=True)
    span = next(open_spans.filter(pl.col("process") == first_process).iter_rows(named=True), None)
    step, where = _find_step_of_end(trace, first_process, span)
    calls = standstill.find_calls_awaiting(process["rank"]) if process["role"] == "worker" else []
    waiting_ranks = {rank for call in calls for rank in call.ranks_inside}
    is_waiting = (pl.col("role") == "worker") & pl.col("rank").is_in(list(waiting_ranks))
    other_processes = cut_off.filter((pl.col("process") != first_process) & ~is_waiting)
    consequences = [describe_blocked(call) for call in calls]
    if other_processes.height:
        ordered = other_processes.sort("role", "rank", descending=[True, False])
        names = [name_process(other) for other in ordered.iter_rows(named=True)]
        consequences.append(f"{list_some(names)} ended after it")
    if trace.choice.rank_ranges is not None:
        consequences.append("ranks that were left out may have ended before it")
    may_run_on = process["file"].endswith(SEGMENTS_SUFFIX)
    return [
        Finding.of(
            "truncated_trace",
            {
                "who": fmt.capital(name_process(process)),
                "where": where + describe_location(span),
                "elsewhere": ", or still running on its host" if may_run_on else "",
                "after": "".join(f"; {text}" for text in consequences),
            },
            **identify(process),
            phase=span["kind"] if span else None,
            steps=None if step is None else (step, step),
            function=span["name"] if span else None,
            evidence={
                "file": process["file"],
                "broken_off": cut_off["file"].to_list(),
                "waiting": sorted(waiting_ranks),
            },
        )
    ]


def _find_first_process(
    standstill: Standstill, cut_off: pl.DataFrame, open_spans: pl.DataFrame
) -> int:
    """Return the process that others were left waiting for, else the one that fell silent first.

    Only processes that were `cut_off`, a row each, count; `open_spans` has the innermost one of each.
    """
    process_by_rank = dict(cut_off.select("rank", "process").iter_rows())
    root_ranks = [rank for root in standstill.roots for rank in root.ranks]
    awaited_ranks = [rank for rank in root_ranks if rank in process_by_rank]
    if awaited_ranks:
        return int(process_by_rank[awaited_ranks[0]])
    communicating_spans = open_spans.filter(pl.col("kind").is_in(["reduction", "wait", "ps"]))
    not_communicating = cut_off.join(communicating_spans, on="process", how="anti")
    candidates = not_communicating if 0 < not_communicating.height < cut_off.height else cut_off
    return int(candidates.sort("last_ns", nulls_last=True)["process"][0])


def _find_step_of_end(trace: Trace, process: int, open_span: dict[str, Any] | None) -> FailedStep:
    """Return the step of a process's innermost open span, else the last one that is known."""
    if open_span and open_span["step"] >= 0:
        step = int(open_span["step"])
        return FailedStep(step, f" in step {step}")
    return _find_last_step(trace, process)


def _find_last_step(trace: Trace, process: int) -> FailedStep:
    """Return the last complete step of a process; without a number if its steps are counted by calls."""
    failed_step = find_failed_step(trace, process)
    last_step = trace.steps.filter(pl.col("process") == process)["step"].max()
    if failed_step.step is None or not isinstance(last_step, int):
        return failed_step
    return FailedStep(last_step, f" after step {last_step}")
