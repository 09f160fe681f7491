"""What a watch tells, as sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.accounting.life.failed_attempts import LastCall, describe_last_call
from tracelens.accounting.life.orders import describe_exit_code
from tracelens.accounting.watched_stalls import list_python_frames
from tracelens.model import fmt
from tracelens.model.inert import clean
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.schema.life import Ended, Exited, Launched, Stalled
    from tracelens.watch.beginnings import Nothing
    from tracelens.watch.job import JobProcess
    from tracelens.watch.recording import LiveRecording, OpenSpan
    from tracelens.watch.stalls import Stall
    from tracelens.watch.starts import Absence
    from tracelens.watch.status import JobStatus
    from tracelens.watch.stragglers import Straggler

__all__ = [
    "describe_absence",
    "describe_begin",
    "describe_command",
    "describe_end",
    "describe_end_of_command",
    "describe_ending",
    "describe_nothing",
    "describe_resumption",
    "describe_stacks",
    "describe_stall",
    "describe_stalled_status",
    "describe_status",
    "describe_straggler",
    "join_reasons",
    "list_endings",
]

_PYTHON_FRAMES_SHOWN: Final = 3  # frames: the innermost ones of Python are shown [policy]


def describe_begin(begun_processes: Sequence[JobProcess], world: int, *, restarted: bool) -> str:
    """Report which processes have begun to record, for the first time or again (`restarted`)."""
    ranks = sorted(
        member.process.rank for member in begun_processes if member.process.role == "worker"
    )
    servers = len(begun_processes) - len(ranks)
    name = fmt.listing("rank", ranks) if ranks else fmt.count(servers, "parameter server")
    again = " again" if restarted else ""
    verb = "records" if len(begun_processes) == 1 else "record"
    return f"{name} of {world} {verb}{again}"


def describe_absence(absence: Absence) -> str:
    """Report which ranks do not record yet, and, a line each, what they do."""
    do = "does" if len(absence.ranks) == 1 else "do"
    sentence = (
        f"{fmt.listing('rank', absence.ranks)} of {absence.world}, started "
        f"{fmt.duration(absence.waited_ns)} ago, {do} not record yet"
    )
    if absence.idle_ranks:
        have = "has" if len(absence.idle_ranks) == 1 else "have"
        are_all_idle = absence.idle_ranks == absence.ranks
        subject = ", and" if are_all_idle else f"; {fmt.listing('rank', absence.idle_ranks)}"
        sentence += f"{subject} {have} not computed for {fmt.duration(absence.idle_ns)}"
    if absence.unseen:
        sentence += f"; no process of {fmt.listing('rank', absence.unseen)} is on this host"
    lines = [sentence]
    for rank, cpu_ns in sorted(absence.cpu_ns.items(), key=lambda item: item[1]):
        frames = absence.stacks.frames.get(str(rank), [])
        if frames:
            code = " < ".join(map(clean, _choose_frames(frames)))
            lines.append(f"rank {rank}: {code}; computed for {fmt.duration(cpu_ns)} in all")
    if absence.stacks.reasons:
        lines.append(f"no stacks of {join_reasons(absence.stacks.reasons)}")
    return "\n".join(lines)


def describe_nothing(nothing: Nothing) -> str:
    """Report that nothing was recorded for long, and what is left of the job on this host."""
    waited = fmt.duration(nothing.waited_ns)
    if nothing.has_ended:
        return (
            "no process of this host names the trace folder any more, and none of them has recorded "
            "anything: does the program use a framework that is recorded? See tracelens doctor"
        )
    if nothing.pids:
        count = fmt.count(len(nothing.pids), "process", "processes")
        verb = "runs" if len(nothing.pids) == 1 else "run"
        return f"nothing was recorded for {waited}; {count} of the job {verb} on this host"
    folder = "" if nothing.has_folder else "the folder does not exist yet, and "
    return (
        f"nothing was recorded for {waited}: {folder}no process of this host was started to record "
        "there (TRACELENS_DIR); the watch goes on waiting"
    )


def describe_status(status: JobStatus) -> str:
    """Describe the progress, pace and latest rank of a job in one line."""
    running = [member for member in status.ranks if not member.is_over]
    phrases = [f"{len(running)} of {fmt.count(status.world, 'rank')}"]
    if status.step is not None:
        phrases.append(f"step {status.step}")
    if status.steps_per_s is not None:
        usual = status.usual_steps_per_s
        usual_text = f" (usual {usual[0]:.3g} to {usual[1]:.3g})" if usual else ""
        phrases.append(f"{status.steps_per_s:.3g} steps/s{usual_text}")
    if status.samples_per_s is not None:
        phrases.append(f"{status.samples_per_s:,.0f} samples/s")
    if status.tokens_per_s is not None:
        phrases.append(f"{status.tokens_per_s:,.0f} tokens/s")
    latest = status.latest
    if latest is not None and latest.delay_ns is not None and latest.delay_ns > 0:
        phrases.append(f"rank {latest.rank} enters last, by {fmt.duration(latest.delay_ns)}")
    return ", ".join(phrases)


def describe_stalled_status(status: JobStatus, stall: Stall | None) -> str:
    """Describe where a job stands; of a stall first its length, and who makes others wait."""
    if stall is None:
        return describe_status(status)
    length = fmt.duration(status.at_ns - stall.since_ns)
    name = fmt.listing("rank", stall.culprits)
    verb = "makes" if len(stall.culprits) == 1 else "make"
    effect = "others wait" if stall.waiting else "no progress"
    culprits = f": {name} {verb} {effect}" if stall.culprits else ""
    return f"Stalled for {length}{culprits}. {describe_status(status)}"


def describe_stall(
    stall: Stall,
    entry: Stalled,
    ranks: Mapping[int, JobProcess],
    other_hosts: Mapping[int, str],
) -> str:
    """Describe which ranks wait for which, in which call, since when, and what the culprits do."""
    length = fmt.duration(entry.at_ns - stall.since_ns)
    where = _describe_call(entry)
    if not stall.culprits:
        all_ranks = fmt.listing("rank", stall.waiting)
        others = fmt.listing("rank", sorted(set(other_hosts) - set(ranks))) if other_hosts else ""
        hidden = f"; {others} on other hosts are not seen here" if others else ""
        return f"STALLED for {length}: {all_ranks} are in {where}, which does not complete{hidden}"
    name = fmt.listing("rank", stall.culprits)
    details = [_describe_culprit(rank, stall, entry, ranks, other_hosts) for rank in stall.culprits]
    if not stall.waiting:
        return f"STALLED for {length}: {name} made no progress; {'; '.join(details)}"
    waiting = [rank for rank in stall.waiting if rank not in stall.culprits]
    if stall.reason == "made different calls":
        details = _list_calls(stall, ranks)
    if not waiting or stall.reason in {"wait for each other", "made different calls"}:
        return f"STALLED for {length}: {name} wait for each other; {'; '.join(details)}"
    verb = "waits" if len(waiting) == 1 else "wait"
    return (
        f"STALLED for {length}: {fmt.listing('rank', waiting)} {verb} in {where} for {name}; "
        f"{'; '.join(details)}"
    )


def _list_calls(stall: Stall, ranks: Mapping[int, JobProcess]) -> list[str]:
    """Describe the call that each culprit made under one number, where it is known."""
    calls = []
    for rank in stall.culprits:
        recording = ranks[rank].recording if rank in ranks else None
        if recording is not None and stall.call is not None:
            log = recording.call_logs.get(stall.call.communicator)
            call = None if log is None else log.calls.get(stall.call.seq)
            if call is not None:
                calls.append(f"rank {rank} made {COLLECTIVES[call.op]} {call.seq}")
    return calls


def _describe_call(entry: Stalled) -> str:
    number = "" if entry.seq is None else f" {entry.seq}"
    name = "" if entry.communicator is None else f" of '{clean(entry.communicator)}'"
    step = "" if entry.step is None else f" (step {entry.step})"
    return f"{entry.op}{number}{name}{step}"


def _describe_culprit(
    rank: int,
    stall: Stall,
    entry: Stalled,
    ranks: Mapping[int, JobProcess],
    other_hosts: Mapping[int, str],
) -> str:
    """Describe what a rank that others wait for is doing."""
    member = ranks.get(rank)
    if member is None:
        host = other_hosts.get(rank)
        place = "was never seen here" if host is None else f"records on host {clean(host)}"
        return f"rank {rank} {place}"
    if stall.reason in {"has ended its recording", "has died"} and member.is_over:
        return f"rank {rank} {stall.reason}"
    children = [
        f"its{label.removeprefix(str(rank))} is {state}"
        for label, state in entry.states.items()
        if label.startswith(f"{rank} child")
    ]
    span = None if member.recording is None else member.recording.innermost
    phrases = [f"rank {rank} is {member.state or 'not on this host'}"]
    if span is not None:
        since_ns = entry.at_ns - member.to_wall_ns(span.start_ns)
        phrases.append(f"in {_describe_span(span)} since {fmt.duration(since_ns)}")
    if stall.reason == "made another call":
        other = "another call" if stall.other_op is None else f"{stall.other_op} {entry.seq}"
        phrases.append(f"made {other} instead")
    return ", ".join([*phrases, *children])


def describe_stacks(entry: Stalled) -> str:
    """Show the innermost frames of each stack, a line each, and the reason for missing stacks."""
    lines = [
        f"rank {clean(label)}: {' < '.join(map(clean, _choose_frames(frames)))}"
        for label, frames in entry.stacks.items()
    ]
    if entry.no_stacks is not None:
        lines.append(f"no stacks of {entry.no_stacks}")
    return "\n".join(lines)


def _choose_frames(frames: Sequence[str]) -> list[str]:
    """Return the innermost frame that has a name, and the innermost ones of Python."""
    named_frames = [frame for frame in frames if not frame.startswith("0x")]
    python_frames = list_python_frames(named_frames)
    chosen_frames = [*named_frames[:1], *python_frames[:_PYTHON_FRAMES_SHOWN]]
    return list(dict.fromkeys(chosen_frames))


def join_reasons(reasons: Mapping[str, str]) -> str:
    """List the ranks without stacks, with the reason."""
    ranks_by_reason: dict[str, list[str]] = {}
    for label, reason in reasons.items():
        ranks_by_reason.setdefault(reason, []).append(label)
    return "; ".join(
        f"{fmt.listing('rank', labels)}: {clean(reason)}"
        for reason, labels in ranks_by_reason.items()
    )


def describe_resumption(
    stall: Stall, now_ns: int, ended_ranks: Sequence[int], *, is_job_over: bool
) -> str:
    """Report that a stall is over: the job goes on, or `ended_ranks` have ended, or all of it."""
    length = fmt.duration(now_ns - stall.since_ns)
    if not ended_ranks:
        return f"resumed after {length}"
    name = "the job" if is_job_over else fmt.listing("rank", ended_ranks)
    return f"{name} ended after a stall of {length}"


def describe_straggler(change: Straggler) -> str:
    """Describe a rank that has become late, or is on time again."""
    lag = fmt.percent(change.lag)
    if change.is_over:
        steps = fmt.steps(change.first_step, change.last_step)
        return f"rank {change.rank} is on time again; it was late by {lag} of a step ({steps})"
    return (
        f"rank {change.rank} is late: since step {change.first_step} the others wait for it, "
        f"for {lag} of a step"
    )


def describe_end(entry: Exited, member: JobProcess | None) -> str:
    """Describe how a process ended."""
    name = f"{'rank' if entry.role == 'worker' else 'parameter server'} {entry.rank}"
    ending = "ended" if entry.code is None else describe_exit_code(entry.code)
    if entry.is_out_of_memory:
        ending += ", for want of memory"
    recording = None if member is None else member.recording
    if not entry.has_recorded:
        return f"{name} (pid {entry.pid}) {ending} before it recorded anything"
    if recording is None or entry.code == 0:
        return f"{name} (pid {entry.pid}) {ending}"
    reason = _describe_reason(recording, entry)
    where = _describe_last_span(recording, entry)
    return f"{name} (pid {entry.pid}) {ending}{reason}{where}"


def describe_end_of_command(launched: Launched, ended: Ended, running_ranks: Sequence[int]) -> str:
    """Report that the command has ended, and that ranks outlive it."""
    verb = "goes" if len(running_ranks) == 1 else "go"
    (ending,) = describe_command(launched, ended.code)
    return f"{ending}; {fmt.listing('rank', running_ranks)} {verb} on recording"


def describe_command(launched: Launched | None, code: int | None) -> list[str]:
    """Describe how the command of `record` ended, in one clause; none if it is not known."""
    if code is None:
        return []
    name = "" if launched is None else clean(launched.command)
    return [f"{name or 'the command'} {describe_exit_code(code)}"]


def describe_ending(code: int | None, *, is_complete: bool) -> str:
    """Describe the end of a process as a predicate; `is_complete`: it ended its recording itself."""
    if code is None:
        return "closed the recording" if is_complete else "broke off"
    return describe_exit_code(code)


def list_endings(ending_by_rank: Mapping[int, str]) -> list[str]:
    """Describe how ranks ended, a clause for each way."""
    ranks_by_ending: dict[str, list[int]] = {}
    for rank, ending in ending_by_rank.items():
        ranks_by_ending.setdefault(ending, []).append(rank)
    return [
        f"{fmt.listing('rank', ranks)} {ending if len(ranks) == 1 else _to_plural(ending)}"
        for ending, ranks in ranks_by_ending.items()
    ]


def _to_plural(predicate: str) -> str:
    return f"were{predicate.removeprefix('was')}" if predicate.startswith("was ") else predicate


def _describe_reason(recording: LiveRecording, entry: Exited) -> str:
    """Describe the exception that ended a process, or the line that chose its exit code."""
    noted = recording.ending
    if noted is None or (entry.code is not None and entry.code < 0):
        return ""
    is_known = noted.cause == f"exit code {entry.code}"
    message = f" ({clean(noted.message)})" if noted.message else ""
    reason = "" if is_known else f": {clean(noted.cause)}{message}"
    return f"{reason} at {clean(noted.user_frame)}" if noted.user_frame else reason


def _describe_last_span(recording: LiveRecording, entry: Exited) -> str:
    """Name the span that an exception left, or in which one a process was killed."""
    failed = recording.exception
    has_raised = entry.code is not None and entry.code > 0
    if has_raised and failed is not None:
        return f"; an exception left {_describe_span(failed)}"
    span = recording.innermost
    if span is not None:
        return f"; it was in {_describe_span(span)}"
    if recording.steps:
        return f" after step {recording.steps[-1].number}"
    last_calls = [
        LastCall(log.last_completed.seq, COLLECTIVES[log.last_completed.op], log.group.name)
        for log in recording.call_logs.values()
        if log.last_completed is not None
    ]
    last_call = max(last_calls, key=lambda call: call.seq, default=None)
    return "" if last_call is None else describe_last_call(last_call)


def _describe_span(span: OpenSpan) -> str:
    if span.kind == "step":
        return f"step {span.step}"
    return f"'{clean(span.name)}'{f' of step {span.step}' if span.step >= 0 else ''}"
