"""Stalls of a running job: the awaited and the waiting ranks, and the begin of the standstill.

`tracelens.accounting.standstill` finds the ranks that all others wait for. They are accused when they
have made no progress for longer than their kind of pause may take (`pauses.py`). Some ranks cannot make
progress: a stopped or lost rank, a rank in another call than its peers, and ranks that wait for each
other in a circle. These are accused after the shortest time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.accounting.standstill import (
    find_last_seq_by_rank,
    find_open_calls,
    find_roots,
    pair_open_messages,
)
from tracelens.align.collectives import to_grid
from tracelens.model.recognition import EQUAL_BYTES
from tracelens.schema.vocabulary import COLLECTIVES, STATUSES
from tracelens.watch.pauses import END, MIN_STALL_NS, START, STEP, PauseLimits
from tracelens.watch.recording import STEPS_OF_START

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.accounting.standstill import OpenCall, Root
    from tracelens.arrays import Array
    from tracelens.model.calls import CallGrid
    from tracelens.watch.job import JobProcess, LiveJob
    from tracelens.watch.recording import Call, CallLog

__all__ = ["Stall", "StallDetector"]

# ns: shorter pauses teach nothing, as looks are a second apart [chosen]
MIN_PAUSE_TO_LEARN_NS: Final = 10**9
_CLOSED: Final = STATUSES.index("closed")


@dataclass(frozen=True)
class Stall:
    """A job that stands still; wall times, ns.

    Since `since_ns` the `culprits` have made no progress, which was found at `found_ns`. The `waiting`
    ranks are in `call`, null where no rank is in a call; `communicator` is its name. `pause` is the kind
    of pause of the culprits, `limit_ns` how long that may take. `reason` says why they will not go on,
    empty where that is not certain; `other_op` is the call that they made instead.
    """

    since_ns: int
    found_ns: int
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    call: OpenCall | None
    communicator: str | None
    pause: str
    limit_ns: int
    reason: str
    other_op: str | None = None


class StallDetector:
    """Judges a job at each look.

    A stall lasts until the call or step that stood still goes on, or until its ranks have ended. The
    end of a recording is no progress, nor is a call that fails, of a timeout for example. `has_ended`
    says of the last stall that is over that its ranks ended.
    """

    def __init__(self) -> None:
        self.limits = PauseLimits()
        self.stall: Stall | None = None
        self.has_ended = False
        self._idle: dict[tuple[str, int, int], tuple[int, str]] = {}
        self._excuses: dict[tuple[str, int, int], tuple[int, str]] = {}
        self._starting: set[tuple[str, int, int]] = set()

    def look(self, job: LiveJob, now_ns: int) -> Stall | None:
        """Return the present stall; the same one as long as it lasts.

        First the limits of pauses are learnt from those that have ended. Ranks on other hosts are not
        accused, as their records are not seen.
        """
        ranks = job.ranks
        self._learn(ranks, now_ns)
        if self.stall is not None:
            is_resumed = _is_resumed(self.stall, ranks)
            self.has_ended = not is_resumed and not _list_running(self.stall, ranks)
            if not is_resumed and not self.has_ended:
                return self.stall
        hidden_ranks = set(job.other_hosts) - set(ranks)
        self.stall = self._find(ranks, hidden_ranks, now_ns)
        return self.stall

    def excuse(self, stall: Stall, ranks: Mapping[int, JobProcess], pause: str) -> None:
        """Judge ranks that stand still by another kind of pause, until they make progress."""
        for rank in stall.culprits:
            if rank in ranks:
                member = ranks[rank]
                self._excuses[member.identity] = (member.progress_wall_ns, pause)
        self.stall = None

    def usual_step_ns(self, ranks: Mapping[int, JobProcess]) -> int:
        """Return the median step of all ranks, ns; 0 before the first step."""
        steps = [
            step.end_ns - step.start_ns
            for member in ranks.values()
            if member.recording is not None
            for step in member.recording.steps
        ]
        return int(np.median(steps)) if steps else 0

    def _learn(self, ranks: Mapping[int, JobProcess], now_ns: int) -> None:
        """Learn from spans how long pauses take, and from times without progress that have ended."""
        for member in ranks.values():
            if member.recording is None:
                continue
            for kind, spans in member.recording.pauses.items():
                self.limits.learn_spans(kind, spans)
            if member.step_count < STEPS_OF_START:
                self._starting.add(member.identity)
            elif member.identity in self._starting:  # a watch that began later cannot tell how long
                self._starting.remove(member.identity)
                self.limits.learn(START, min(member.process.incarnation, now_ns), now_ns)
            progress_ns = member.progress_wall_ns
            idle_since_ns, kind = self._idle.get(member.identity, (progress_ns, ""))
            if kind and progress_ns - idle_since_ns > MIN_PAUSE_TO_LEARN_NS:
                self.limits.learn(kind, idle_since_ns, progress_ns)
            is_waiting = any(span.op is not None for span in member.recording.open_spans)
            is_free = member.state not in {"stopped", "gone", "zombie"} and not is_waiting
            self._idle[member.identity] = (progress_ns, self._pause_of(member) if is_free else "")

    def _find(
        self, ranks: Mapping[int, JobProcess], hidden_ranks: set[int], now_ns: int
    ) -> Stall | None:
        """Return the stall with most victims; None while all that stands still may be a pause.

        Args:
            ranks: The processes of this job.
            hidden_ranks: Ranks on other hosts, whose calls are not seen here: none is accused.
            now_ns: Wall time.
        """
        if not _may_stand_still(ranks, now_ns):
            return None
        grids = _gather_calls(ranks)
        members = {
            uid: log.group.ranks
            for member in ranks.values()
            if member.recording is not None
            for uid, log in member.recording.call_logs.items()
        }
        calls = [
            call
            for uid, grid in grids.items()
            for call in find_open_calls(
                grid,
                members[uid],
                frozenset(members[uid]) - hidden_ranks if hidden_ranks else None,
                EQUAL_BYTES,
            )
        ]
        calls += pair_open_messages(_gather_messages(ranks))
        counts: Counter[int] = Counter()
        for grid in grids.values():
            counts.update(find_last_seq_by_rank(grid))
        names = {
            uid: log.group.name
            for member in ranks.values()
            if member.recording is not None
            for uid, log in member.recording.call_logs.items()
        }
        for root in find_roots(calls, counts):
            stall = self._judge_root(root, ranks, names, now_ns)
            if stall is not None:
                return stall
        return self._judge_all(calls, ranks, names, now_ns)

    def _judge_root(
        self,
        root: Root,
        ranks: Mapping[int, JobProcess],
        names: Mapping[str, str],
        now_ns: int,
    ) -> Stall | None:
        """Return the stall that a root causes; None if its pause may be a usual one."""
        calls = [call for call in root.calls if call.ranks_inside]
        if not calls:
            return None
        culprits = {rank: ranks[rank] for rank in root.ranks if rank in ranks}
        entered_ns = {call: _entered_ns(call, ranks) for call in calls}
        call = min(calls, key=lambda call: entered_ns[call])
        call = replace(call, op=_find_op(call, call.ranks_inside, ranks) or call.op)
        progress_ns = [member.progress_wall_ns for member in culprits.values()]
        since_ns = max(progress_ns, default=min(entered_ns.values()))
        reason = _explain(root, culprits.values())
        pause, limit_ns = self._limit(culprits.values(), ranks)
        limit_ns = MIN_STALL_NS if reason else limit_ns
        if now_ns - max(since_ns, min(entered_ns.values())) <= limit_ns:
            return None
        return Stall(
            since_ns=since_ns,
            found_ns=now_ns,
            culprits=root.ranks,
            waiting=call.ranks_inside,
            call=call,
            communicator=names.get(call.communicator),
            pause=pause,
            limit_ns=limit_ns,
            reason=reason,
            other_op=_find_op(call, root.ranks, ranks) if root.is_strayed else None,
        )

    def _judge_all(
        self,
        calls: Iterable[OpenCall],
        ranks: Mapping[int, JobProcess],
        names: Mapping[str, str],
        now_ns: int,
    ) -> Stall | None:
        """Return the stall of a job in which no rank makes progress and none waits for another.

        If the ranks are in a call that all have entered, nobody is the culprit.
        """
        running = {rank: member for rank, member in ranks.items() if not member.is_over}
        if not running:
            return None
        since_ns = max(member.progress_wall_ns for member in running.values())
        pause, limit_ns = self._limit(running.values(), ranks)
        is_stopped = all(member.state == "stopped" for member in running.values())
        limit_ns = MIN_STALL_NS if is_stopped else limit_ns
        if now_ns - since_ns <= limit_ns:
            return None
        entered = [call for call in calls if call.ranks_inside and not call.awaited_ranks]
        call = max(entered, key=lambda call: len(call.ranks_inside), default=None)
        waiting = () if call is None else call.ranks_inside
        return Stall(
            since_ns=since_ns,
            found_ns=now_ns,
            culprits=() if waiting else tuple(running),
            waiting=waiting,
            call=call,
            communicator=None if call is None else names.get(call.communicator),
            pause=pause,
            limit_ns=limit_ns,
            reason="is stopped" if is_stopped else "",
        )

    def _pause_of(self, member: JobProcess) -> str:
        """Return the kind of pause that a rank makes, by its spans or by its excuse."""
        progress_ns, pause = self._excuses.get(member.identity, (0, ""))
        if pause and progress_ns == member.progress_wall_ns:
            return pause
        return START if member.recording is None else member.recording.pause

    def _limit(
        self, culprits: Iterable[JobProcess], ranks: Mapping[int, JobProcess]
    ) -> tuple[str, int]:
        """Return the kind of pause that lasts longest of those the culprits make, and its limit, ns."""
        usual_step_ns = self.usual_step_ns(ranks)
        if any(member.is_complete for member in ranks.values()):
            pauses = {END}
        else:
            has_started = any(member.step_count >= STEPS_OF_START for member in ranks.values())
            pauses = {
                self._pause_of(member) for member in culprits if member.recording is not None
            } or {STEP if has_started else START}
        limits_ns = {pause: self.limits.limit_ns(pause, usual_step_ns) for pause in pauses}
        pause = max(limits_ns, key=lambda pause: limits_ns[pause])
        return pause, limits_ns[pause]


def _list_running(stall: Stall, ranks: Mapping[int, JobProcess]) -> dict[int, JobProcess]:
    """Return the processes that stood still and still record; those started again are others."""
    members = {rank: ranks[rank] for rank in (*stall.waiting, *stall.culprits) if rank in ranks}
    return {
        rank: member
        for rank, member in members.items()
        if not member.is_over and member.process.incarnation <= stall.found_ns
    }


def _is_resumed(stall: Stall, ranks: Mapping[int, JobProcess]) -> bool:
    """Return True if the call that stood still was completed, or ranks that wait completed another.

    Where none waits any more, it is the others that must go on.
    """
    running = _list_running(stall, ranks)
    if any(_has_completed(stall.call, ranks[rank]) for rank in stall.waiting if rank in ranks):
        return True
    waiting = [running[rank] for rank in stall.waiting if rank in running]
    return any(
        member.completed_wall_ns > stall.found_ns and not _is_inside(stall.call, member)
        for member in waiting or running.values()
    )


def _has_completed(call: OpenCall | None, member: JobProcess) -> bool:
    """Return True if a rank has completed a numbered call."""
    log = _find_log(call, member)
    if call is None or log is None or log.last_completed is None:
        return False
    return call.seq >= 0 and log.last_completed.seq >= call.seq


def _is_inside(call: OpenCall | None, member: JobProcess) -> bool:
    """Return True if a rank is still in a numbered call; it may do other work at the same time."""
    log = _find_log(call, member)
    entry = None if call is None or log is None else log.calls.get(call.seq)
    return entry is not None and entry.is_open


def _find_log(call: OpenCall | None, member: JobProcess) -> CallLog | None:
    if call is None or member.recording is None:
        return None
    return member.recording.call_logs.get(call.communicator)


def _may_stand_still(ranks: Mapping[int, JobProcess], now_ns: int) -> bool:
    """Return True if a rank has made no progress for the shortest time that a stall takes."""
    return any(
        not member.is_over and now_ns - member.progress_wall_ns > MIN_STALL_NS
        for member in ranks.values()
    )


def _explain(root: Root, culprits: Iterable[JobProcess]) -> str:
    """Return the reason, as a predicate, for which a root will not go on; empty where it may.

    Args:
        root: The ranks for which all others wait; strayed if they made another call than these.
        culprits: The processes of these ranks.
    """
    states = [member.state for member in culprits if not member.is_complete]
    if states and all(state == "stopped" for state in states):
        return "is stopped"
    if any(member.is_complete for member in culprits):
        return "has ended its recording"
    if states and all(state in {"gone", "zombie"} for state in states):
        return "has died"
    if root.is_strayed:
        return "made another call" if len(root.ranks) == 1 else "made different calls"
    return "wait for each other" if len(root.ranks) > 1 else ""


def _find_op(call: OpenCall, members: Iterable[int], ranks: Mapping[int, JobProcess]) -> str | None:
    """Return the operation that the first of some ranks made under the number of a call."""
    for rank in members:
        member = ranks.get(rank)
        log = None if member is None else _find_log(call, member)
        if log is not None and call.seq in log.calls:
            return COLLECTIVES[log.calls[call.seq].op]
    return None


def _entered_ns(call: OpenCall, ranks: Mapping[int, JobProcess]) -> int:
    """Return the time at which the first of the ranks inside entered a call, wall time in ns."""
    times_ns = []
    for rank in call.ranks_inside:
        member = ranks[rank]
        assert member.recording is not None
        log = _find_log(call, member)
        entry = None if log is None else log.calls.get(call.seq)
        begin_ns = member.recording.progress_ns if entry is None else entry.start_ns
        times_ns.append(member.to_wall_ns(begin_ns))
    return min(times_ns)


def _gather_messages(
    ranks: Mapping[int, JobProcess],
) -> list[tuple[str | None, str, int, int, int]]:
    """Return open sends and receives: communicator, operation, rank, peer and step."""
    return [
        (communicator, op, rank, peer, step)
        for rank, member in ranks.items()
        if member.recording is not None and not member.is_over
        for communicator, op, peer, step in member.recording.open_messages()
    ]


def _gather_calls(ranks: Mapping[int, JobProcess]) -> dict[str, CallGrid]:
    """Put the last calls of all ranks side by side, by communicator, on the clocks of the ranks."""
    calls_of: dict[str, dict[int, list[Call]]] = {}
    for rank, member in ranks.items():
        if member.recording is not None:
            for uid, log in member.recording.call_logs.items():
                calls = [call for _, call in sorted(log.calls.items())]
                if member.is_over:  # it is in no call any more: others that are wait for it
                    calls = [call for call in calls if not call.is_open]
                if calls:
                    calls_of.setdefault(uid, {})[rank] = calls
    return {uid: _to_grid(uid, calls_by_rank) for uid, calls_by_rank in calls_of.items()}


def _to_grid(uid: str, calls_by_rank: Mapping[int, list[Call]]) -> CallGrid:
    """Build the grid of calls from the first open one on, and of the last call of each rank."""
    open_seqs = [call.seq for calls in calls_by_rank.values() for call in calls if call.is_open]
    first_seq = min(open_seqs, default=1 << 62)
    return to_grid(
        uid,
        {
            (rank, rank): _to_columns(
                [call for call in calls if call.seq >= first_seq or call is calls[-1]]
            )
            for rank, calls in calls_by_rank.items()
        },
    )


def _to_columns(calls: list[Call]) -> dict[str, Array]:
    """Return the calls of a rank as `CallFacts` by name, [call]."""
    types: dict[str, Any] = {
        **dict.fromkeys(("seq", "nbytes", "start_ns", "end_ns"), np.int64),
        **dict.fromkeys(("step", "bucket", "thread", "peer"), np.int32),
        "op": np.int8,
    }
    columns = {
        name: np.array([getattr(call, name) for call in calls], kind)
        for name, kind in types.items()
    }
    return columns | {"status": np.full(len(calls), _CLOSED, np.int8)}
