"""Ranks of a job as the stall detector sees them, made by hand: no process, no file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tracelens.model.columns import FOREVER, NULL
from tracelens.schema.side import Communicator, Process
from tracelens.schema.vocabulary import COLLECTIVES
from tracelens.watch.job import JobProcess
from tracelens.watch.pauses import STEP, SeenPauses
from tracelens.watch.recording import Call, CallLog, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.watch.job import LiveJob

S = 10**9


@dataclass
class FakeRecording:
    """What the detector asks of a recording; times in ns of wall time."""

    progress_ns: int = S
    completed_ns: int = S
    pause: str = STEP
    step_count: int = 100
    steps: list[Step] = field(default_factory=lambda: [Step(i, i, i + S // 10) for i in range(9)])
    call_logs: dict[str, CallLog] = field(default_factory=dict)
    pauses: dict[str, SeenPauses] = field(default_factory=dict)
    wall_offset_ns: int = 0
    messages: Sequence[tuple[str, str, int, int]] = ()

    @property
    def open_spans(self) -> list[Any]:
        is_inside = any(
            call.is_open for log in self.call_logs.values() for call in log.calls.values()
        )
        return [SimpleNamespace(op="allreduce")] if is_inside or self.messages else []

    def open_messages(self) -> Iterator[tuple[str, str, int, int]]:
        return iter(self.messages)


def rank_of(rank: int, **facts: Any) -> JobProcess:
    """Make a rank that runs; `facts` are of its process or of its recording."""
    process = Process(
        rank=rank, world=4, host="h", pid=100 + rank, incarnation=facts.pop("incarnation", 1)
    )
    job_process = JobProcess(process, cast("Any", None), Path("none"), "sleeping")
    for name in ("state", "is_over", "is_complete"):
        setattr(job_process, name, facts.pop(name, getattr(job_process, name)))
    job_process.recording = cast("Any", FakeRecording(**facts))
    return job_process


def enter(
    one: JobProcess, uid: str, members: Sequence[int], *calls: tuple[int, str, int, int | None]
) -> JobProcess:
    """Let a rank make calls: number, operation, begin and end in s; None if open, -s if failed."""
    group = Communicator(0, uid, uid, [*members])
    recording = cast("Any", one.recording)
    log = recording.call_logs.setdefault(uid, CallLog(group, {}))
    for seq, op, start_s, end_s in calls:
        end_ns = FOREVER if end_s is None else abs(end_s) * S
        has_failed = (end_s or 0) < 0
        log.put(
            [Call(seq, COLLECTIVES.index(op), 5, NULL, 8, 0, NULL, start_s * S, end_ns, has_failed)]
        )
        recording.progress_ns = max(recording.progress_ns, start_s * S, abs(end_s or 0) * S)
        recording.completed_ns = max(recording.completed_ns, (end_s or 0) * S)
    return one


def job_of(*ranks: JobProcess, other_hosts: dict[int, str] | None = None) -> LiveJob:
    """Make a job of ranks; others are on other hosts."""
    job: Any = SimpleNamespace(
        other_hosts=other_hosts or {}, ranks={one.process.rank: one for one in ranks}
    )
    return cast("LiveJob", job)
