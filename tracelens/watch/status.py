"""Status of a running job: its pace and its usual pace, its ranks, and the latest rank."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.schema.vocabulary import COLLECTIVES, FULL_COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.watch.job import JobProcess, LiveJob
    from tracelens.watch.recording import CallLog, LiveRecording

__all__ = ["CommunicatorStatus", "JobStatus", "PaceHistory", "RankStatus", "measure_status"]

# ns: the pace of now is that of the steps that ended in so much time [chosen]
WINDOW_NS: Final = 10 * 10**9
# looks: the usual pace is that of no more, of which the slowest and fastest tenth are left out [chosen]
MAX_PACES_KEPT: Final = 600
MIN_PACES_FOR_RANGE: Final = 10  # looks: of fewer no usual range is told [chosen]
# collectives: who is late now is told from the last ones [chosen]
MAX_CALLS_FOR_DELAY: Final = 32
# times the usual step: after so long without a step's end the pace falls [chosen]
STEPS_UNTIL_PACE_FALLS: Final = 2
_FULL_CODES: Final = frozenset(map(COLLECTIVES.index, FULL_COLLECTIVES))


@dataclass(frozen=True)
class CommunicatorStatus:
    """The last calls of a rank in a communicator: operation and number; null before the first."""

    name: str
    entered: tuple[str, int] | None
    completed: tuple[str, int] | None


@dataclass(frozen=True)
class RankStatus:
    """Where a rank stands; rates are per second, null where they are not known.

    `step` is the last completed one. `span` is the innermost open span, as kind and name, since
    `span_since_ns` of wall time. `delay_ns` is by how much it enters collectives after the others.
    """

    rank: int
    host: str
    pid: int
    state: str | None
    is_over: bool
    step: int | None
    step_count: int
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    span: tuple[str, str] | None
    span_since_ns: int | None
    delay_ns: float | None
    communicators: tuple[CommunicatorStatus, ...]


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands; `usual_steps_per_s` is the range of its pace so far, null in the beginning."""

    at_ns: int
    world: int
    ranks: tuple[RankStatus, ...]
    steps_per_s: float | None
    usual_steps_per_s: tuple[float, float] | None
    samples_per_s: float | None
    tokens_per_s: float | None

    @property
    def step(self) -> int | None:
        """The last step that all ranks have completed."""
        steps = [
            rank_status.step
            for rank_status in self.ranks
            if not rank_status.is_over or rank_status.step is not None
        ]
        known_steps = [step for step in steps if step is not None]
        return min(known_steps) if known_steps and len(known_steps) == len(steps) else None

    @property
    def latest(self) -> RankStatus | None:
        """The rank that is late most."""
        delayed_ranks = [
            rank_status for rank_status in self.ranks if rank_status.delay_ns is not None
        ]
        return max(delayed_ranks, key=lambda rank_status: rank_status.delay_ns or 0.0, default=None)


@dataclass(eq=False)
class PaceHistory:
    """The pace of a job at each look so far, steps per second; looks without a new step do not count."""

    paces: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_PACES_KEPT))
    step_count: int = 0

    def add(self, pace: float, step_count: int) -> None:
        """Add the pace of a look; `step_count` is the sum of the steps of all ranks so far."""
        if step_count != self.step_count:
            self.step_count = step_count
            self.paces.append(pace)

    def range(self) -> tuple[float, float] | None:
        """Return the usual pace: from the slowest tenth of all looks to the fastest."""
        if len(self.paces) < MIN_PACES_FOR_RANGE:
            return None
        low, high = np.quantile(self.paces, (0.1, 0.9)).tolist()
        return low, high


def measure_status(job: LiveJob, history: PaceHistory, now_ns: int) -> JobStatus:
    """Measure where a job stands now, and add its pace to the history."""
    ranks = job.ranks
    delay_ns = _measure_delays(ranks)
    rank_statuses = tuple(
        _measure_rank(rank, member, delay_ns.get(rank), now_ns) for rank, member in ranks.items()
    )
    paces = [
        rank_status.steps_per_s
        for rank_status in rank_statuses
        if rank_status.steps_per_s is not None
    ]
    pace = median(paces) if paces else None
    usual_paces = history.range()
    if pace is not None:
        history.add(pace, sum(rank_status.step_count for rank_status in rank_statuses))
    return JobStatus(
        at_ns=now_ns,
        world=max(job.world, len(ranks)),
        ranks=rank_statuses,
        steps_per_s=pace,
        usual_steps_per_s=usual_paces,
        samples_per_s=_sum(rank_status.samples_per_s for rank_status in rank_statuses),
        tokens_per_s=_sum(rank_status.tokens_per_s for rank_status in rank_statuses),
    )


def _sum(rates: Iterable[float | None]) -> float | None:
    known_rates = [rate for rate in rates if rate is not None]
    return sum(known_rates) if known_rates else None


def _measure_rank(rank: int, member: JobProcess, delay_ns: float | None, now_ns: int) -> RankStatus:
    """Return the state of a rank at `now_ns` (wall clock), with the speed of its last steps."""
    recording = member.recording
    facts: dict[str, Any] = {
        "rank": rank,
        "host": member.process.host,
        "pid": member.process.pid,
        "state": member.state,
        "is_over": member.is_over,
        "step_count": member.step_count,
        "delay_ns": delay_ns,
    }
    nothing: dict[str, Any] = dict.fromkeys(
        ("step", "steps_per_s", "samples_per_s", "tokens_per_s", "span", "span_since_ns")
    )
    if recording is None:
        return RankStatus(**facts, **nothing, communicators=())
    last_step = recording.steps[-1].number if recording.steps else None
    communicators = tuple(map(_describe_calls, recording.call_logs.values()))
    if member.is_over:
        return RankStatus(**facts, **nothing | {"step": last_step}, communicators=communicators)
    monotonic_ns = now_ns - recording.wall_offset_ns
    begin_ns, end_ns, step_count = _window_of_steps(recording, monotonic_ns)
    seconds = (end_ns - begin_ns) / 1e9
    span = recording.innermost
    return RankStatus(
        **facts,
        step=last_step,
        steps_per_s=step_count / seconds if seconds > 0 else None,
        samples_per_s=_measure_work(recording, "samples", begin_ns, seconds),
        tokens_per_s=_measure_work(recording, "tokens", begin_ns, seconds),
        span=None if span is None else (span.kind, span.name),
        span_since_ns=None if span is None else member.to_wall_ns(span.start_ns),
        communicators=communicators,
    )


def _describe_calls(log: CallLog) -> CommunicatorStatus:
    entered, completed = log.last_entered, log.last_completed
    return CommunicatorStatus(
        log.group.name,
        None if entered is None else (COLLECTIVES[entered.op], entered.seq),
        None if completed is None else (COLLECTIVES[completed.op], completed.seq),
    )


def _window_of_steps(recording: LiveRecording, now_ns: int) -> tuple[int, int, int]:
    """Return begin and end of the time that tells the pace, and the steps that ended in it.

    It begins with the end of a step. It ends with the last one, or now if that is long ago.
    """
    ends_ns = [step.end_ns for step in recording.steps]
    if len(ends_ns) < 2:
        return 0, 0, 0
    usual_ns = median(np.diff(ends_ns).tolist())
    last_ns = ends_ns[-1]
    is_due = now_ns - last_ns > STEPS_UNTIL_PACE_FALLS * usual_ns
    end_ns = now_ns if is_due else last_ns
    first = next((i for i, ns in enumerate(ends_ns) if ns >= end_ns - WINDOW_NS), len(ends_ns) - 1)
    first = min(first, len(ends_ns) - 2) if not is_due else first
    return ends_ns[first], end_ns, len(ends_ns) - 1 - first


def _measure_work(
    recording: LiveRecording, name: str, begin_ns: int, seconds: float
) -> float | None:
    """Return the rate of a counter of steps; None where the program counts none."""
    amounts = recording.work[name]
    if not amounts or seconds <= 0:
        return None
    is_in_window = takewhile(lambda one: one[0] > begin_ns, reversed(amounts))
    return sum(amount for _, amount in is_in_window) / seconds


def _measure_delays(ranks: Mapping[int, JobProcess]) -> dict[int, float]:
    """Return the mean delay with which each rank enters collectives after the others, ns.

    Told from the last calls of the largest group of ranks that share a clock.
    """
    arrivals_ns: dict[tuple[str, str], dict[int, dict[int, int]]] = {}
    for rank, member in ranks.items():
        if member.recording is None or member.is_over:
            continue
        for uid, log in member.recording.call_logs.items():
            key = (uid, member.process.clock_domain)
            arrivals_ns.setdefault(key, {})[rank] = {
                call.seq: call.start_ns for call in log.calls.values() if call.op in _FULL_CODES
            }
    starts_by_rank = max(arrivals_ns.values(), key=len, default={})
    if len(starts_by_rank) < 2:
        return {}
    shared_seqs = set.intersection(*(set(starts) for starts in starts_by_rank.values()))
    last_seqs = sorted(shared_seqs)[-MAX_CALLS_FOR_DELAY:]
    if not last_seqs:
        return {}
    starts_ns = np.array([[starts[seq] for seq in last_seqs] for starts in starts_by_rank.values()])
    others_ns = (starts_ns.sum(axis=0) - starts_ns) / (len(starts_ns) - 1)
    delays_ns = (starts_ns - others_ns).mean(axis=1)
    return dict(zip(starts_by_rank, delays_ns.tolist(), strict=True))
