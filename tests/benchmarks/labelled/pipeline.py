"""Plays and tells a pipeline-parallel training: stages hand micro-batches on, replicas reduce by stage.

A stage runs one forward, one backward, as soon as both it and what it needs are there (Narayanan et al.
2019); a message is on its way for a while after its sender, who does not wait for it, has sent it. Then
the replicas of each stage reduce their gradients, and all ranks agree on their norm, before they update.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.ledger import WORLD, Ledger, What
from benchmarks.labelled.recording import Member, Recording
from benchmarks.labelled.training import MS, ORIGIN_NS, ns

if TYPE_CHECKING:
    from benchmarks.labelled.clocks import HostClock
    from benchmarks.labelled.setting import Setting, Times
    from benchmarks.labelled.work import Work

STAGES: Final = {8: 2, 64: 4, 512: 8}
MICRO_BATCHES: Final = 8
SEND_NS: Final = MS // 20
WIRE_NS: Final = MS * 3 // 10
NORM_NS: Final = MS // 5
PHASES: Final = ("forward", "backprop")


@dataclass
class Played:
    """When everything happened, in true nanoseconds, [step, rank], and [step, rank, begin | end].

    `work`, `sends` and `receives` are by phase and micro-batch; ranks without one have no time there.
    """

    start: Times
    data_end: Times
    reduce: Times
    norm: Times
    end: Times
    work: dict[tuple[str, int], Times] = field(default_factory=dict)
    sends: dict[tuple[str, int], Times] = field(default_factory=dict)
    receives: dict[tuple[str, int], Times] = field(default_factory=dict)

    @property
    def job_ns(self) -> int:
        """From the first step's begin to the last one's end."""
        return int(self.end.max() - self.start.min())


def stage_of(setting: Setting) -> Times:
    """Return the stage of every rank: replicas of a stage are neighbours."""
    return np.arange(setting.ranks) * STAGES[setting.ranks] // setting.ranks


def play(setting: Setting, work: Work) -> Played:
    """Run it."""
    phases_ns = {name: ns(values) for name, values in work.phases.items()}
    steps, ranks = phases_ns["forward"].shape
    stages = STAGES[setting.ranks]
    out = Played(
        start=np.zeros((steps, ranks), np.int64),
        data_end=np.zeros((steps, ranks), np.int64),
        reduce=np.zeros((steps, ranks, 2), np.int64),
        norm=np.zeros((steps, ranks, 2), np.int64),
        end=np.zeros((steps, ranks), np.int64),
    )
    orders = [_order(stage, stages) for stage in range(stages)]
    keys = [(phase, micro) for phase in PHASES for micro in range(MICRO_BATCHES)]
    for table in (out.work, out.sends, out.receives):
        table |= {key: np.zeros((steps, ranks, 2), np.int64) for key in keys}
    now_ns = ORIGIN_NS + ns(work.starts)
    wire, lag = ns(work.transfer.sum(axis=1)), ns(work.lag[:, 0])
    for step in range(steps):
        out.start[step] = now_ns
        now_ns = now_ns + phases_ns["data"][step]
        out.data_end[step] = now_ns
        now_ns = _exchange(
            out,
            step,
            now_ns,
            {name: phases_ns[name][step] // MICRO_BATCHES for name in PHASES},
            orders,
        )
        by_stage = now_ns.reshape(stages, -1).max(axis=1, keepdims=True) + wire[step]
        out.reduce[step, :, 0] = now_ns
        now_ns = (by_stage + lag[step].reshape(stages, -1)).ravel()
        out.reduce[step, :, 1] = out.norm[step, :, 0] = now_ns
        now_ns = now_ns.max() + NORM_NS + lag[step]
        out.norm[step, :, 1] = now_ns
        now_ns = now_ns + phases_ns["update"][step]
        out.end[step] = now_ns
    return out


def _order(stage: int, stages: int) -> list[tuple[str, int]]:
    """Return what a stage does in which order: some forwards ahead, then in turns."""
    ahead = min(stages - stage, MICRO_BATCHES)
    forward = [("forward", micro) for micro in range(MICRO_BATCHES)]
    order = forward[:ahead]
    for micro in range(MICRO_BATCHES):
        order.append(("backprop", micro))
        order += forward[ahead + micro : ahead + micro + 1]
    return order


def _exchange(
    out: Played,
    step: int,
    now: Times,
    takes: dict[str, Times],
    orders: list[list[tuple[str, int]]],
) -> Times:
    """Let the micro-batches of a step through, all replicas at once; return when ranks are done."""
    stages = len(orders)
    columns = np.arange(len(now)).reshape(stages, -1)
    free = now.reshape(stages, -1).copy()
    todo = [list(order) for order in orders]
    sent: dict[tuple[int, str, int], Times] = {}
    while any(todo):
        for stage in range(stages):
            while todo[stage]:
                phase, micro = task = todo[stage][0]
                earlier_stage = stage - 1 if phase == "forward" else stage + 1
                later_stage = stage + 1 if phase == "forward" else stage - 1
                if 0 <= earlier_stage < stages:
                    if (earlier_stage, *task) not in sent:
                        break
                    came = np.maximum(sent[earlier_stage, phase, micro] + WIRE_NS, free[stage])
                    _note(out.receives[task], step, columns[stage], free[stage], came)
                    free[stage] = came
                done = free[stage] + takes[phase][columns[stage]]
                _note(out.work[task], step, columns[stage], free[stage], done)
                free[stage] = done
                if 0 <= later_stage < stages:
                    sent[stage, phase, micro] = done
                    _note(out.sends[task], step, columns[stage], done, done + SEND_NS)
                    free[stage] = done + SEND_NS
                todo[stage].pop(0)
    return free.ravel()


def _note(table: Times, step: int, columns: Times, start: Times, end: Times) -> None:
    table[step, columns, 0], table[step, columns, 1] = start, end


def tell(
    setting: Setting, played: Played, clocks: list[HostClock], *, by_stage: bool = True
) -> Recording:
    """Return the recording of it, with the reductions of each stage or only with what all ranks call."""
    ledger, stages = Ledger(), STAGES[setting.ranks]
    steps, ranks = played.start.shape
    rank, step, stage = np.arange(ranks), np.arange(steps)[:, None], stage_of(setting)
    columns = {"process": rank, "rank": rank, "step": step}
    ledger.note(What("step", "step", depth=0), played.start, played.end, columns)
    ledger.note(What("data", "next_batch"), played.start, played.data_end, columns)
    for (phase, _), times in played.work.items():
        ledger.note(What(phase, phase), times[..., 0], times[..., 1], columns)
    _tell_messages(ledger, played, ranks // stages)
    for number in range(stages if by_stage else 0):
        stage_ranks = np.flatnonzero(stage == number)
        span_kind = What("reduction", "allreduce", "allreduce", communicator=replicas(number))
        here = {"process": stage_ranks, "rank": stage_ranks, "step": step}
        times = played.reduce[:, stage_ranks]
        ledger.note(span_kind, times[..., 0], times[..., 1], here, seq=step, bytes=1 << 24)
    span_kind = What("reduction", "allreduce", "allreduce", communicator=WORLD)
    met = played.norm if by_stage else played.reduce
    ledger.note(span_kind, met[..., 0], played.norm[..., 1], columns, seq=step, bytes=8)
    ledger.note(What("update", "update"), played.norm[..., 1], played.end, columns)
    members = [Member("worker", one, one // setting.per_host) for one in range(ranks)]
    told = range(stages if by_stage else 0)
    groups = {replicas(n): tuple(np.flatnonzero(stage == n).tolist()) for n in told}
    return Recording(
        ledger.frame(), tuple(members), tuple(clocks), (tuple(range(ranks)),), subgroups=groups
    )


def replicas(stage: int) -> str:
    """Return the id of the communicator in which the replicas of a stage reduce."""
    return f"labelled-stage-{stage}"


def _tell_messages(ledger: Ledger, played: Played, next_stage: int) -> None:
    steps = np.arange(len(played.start))[:, None]
    for op, table in (("send", played.sends), ("recv", played.receives)):
        span_kind = What("reduction", op, op, communicator=WORLD)
        for (phase, micro), times in table.items():
            sender_ranks = np.flatnonzero(times[0, :, 1])
            forward = (phase == "forward") == (op == "send")
            peer = sender_ranks + (next_stage if forward else -next_stage)
            columns = {"process": sender_ranks, "rank": sender_ranks, "step": steps}
            start, end = times[:, sender_ranks, 0], times[:, sender_ranks, 1]
            number = steps * MICRO_BATCHES + micro
            ledger.note(span_kind, start, end, columns, seq=number, peer=peer, bytes=1 << 20)
