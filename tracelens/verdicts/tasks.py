"""Tasks that one rank hands out to the others by messages, and who takes how long for them.

Where a rank serves the others (`accounting/stages.py`), a free rank takes the next task. A slow rank
makes fewer of them, and no other has to wait for it: time per step shows little, time per task does.
A worker holds a task from the end of its receive to the begin of its next send, but for times in which
it made a collective call: others hold it up there. That a worker takes longer than the others together
is judged by ranks of times (Mann & Whitney 1947), which long tasks that anybody may get do not mislead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.stats.tails import rank_sum_tail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace

# times the others' usual task: a rank whose usual task takes less is not slow [chosen]
MIN_RATIO_OF_SLOW_TASKS: Final = 1.5
# probability: a slow rank may be so by chance if that is likelier, over all ranks [chosen]
MAX_P_VALUE_OF_SLOW_TASKS: Final = 0.003


@dataclass(frozen=True, eq=False)
class Tasks:
    """How long each worker held each of its tasks, [task]; at least two workers have some.

    `server_rank` hands them out, and waits for requests for a share of the job.
    """

    server_rank: int
    server_wait_share: float
    held_ns_by_rank: Mapping[int, Ints]

    @property
    def slowest_rank(self) -> int:
        """The rank whose usual task is the longest."""
        return max(self.held_ns_by_rank, key=lambda rank: np.median(self.held_ns_by_rank[rank]))

    @property
    def slowness_ratio(self) -> float:
        """How many times as long as the others' usual task that of the slowest is."""
        slowest_ns, others_ns = self._compared_ns
        return float(np.median(slowest_ns)) / max(float(np.median(others_ns)), 1.0)

    @property
    def is_slower(self) -> bool:
        """Whether the slowest takes clearly longer, be it by chance."""
        return self.slowness_ratio >= MIN_RATIO_OF_SLOW_TASKS

    @property
    def may_be_chance(self) -> bool:
        """Whether the slowest takes longer by no more than some worker does by chance."""
        p_value = rank_sum_tail(*self._compared_ns)
        return p_value * len(self.held_ns_by_rank) > MAX_P_VALUE_OF_SLOW_TASKS

    @property
    def text(self) -> str:
        """The rank that holds tasks longest, and how long the rank that hands them out waits."""
        slowest_ns, others_ns = self._compared_ns
        slowest_text, others_text = (
            fmt.duration(float(np.median(ns))) for ns in (slowest_ns, others_ns)
        )
        return (
            f"rank {self.slowest_rank} holds a task longest, for {slowest_text} "
            f"({len(slowest_ns):,} tasks); the others for {others_text} ({len(others_ns):,}); "
            f"rank {self.server_rank}, which hands them out, waits "
            f"{fmt.percent(self.server_wait_share)} of the time"
        )

    @property
    def _compared_ns(self) -> tuple[Ints, Ints]:
        """The times of the slowest rank's tasks, and of all others', [task]."""
        slowest = self.slowest_rank
        others = [ns for rank, ns in self.held_ns_by_rank.items() if rank != slowest]
        return self.held_ns_by_rank[slowest], np.concatenate(others)


def measure_tasks(trace: Trace, phases: Phases, server: int | None) -> Tasks | None:
    """Return the times that ranks held tasks of `server`; None if fewer than two ranks took tasks."""
    if server is None:
        return None
    messages = trace.program_messages.filter(pl.col("peer") == server).sort("start_ns")
    messages = messages.with_columns(pl.col("op").cast(pl.String))
    held_ns_by_rank = {
        int(rank): held_ns
        for (rank,), rank_messages in messages.group_by("rank", maintain_order=True)
        if len(held_ns := _measure_held_ns(trace, rank_messages))  # [task]
    }
    if len(held_ns_by_rank) < 2:
        return None
    blocked_ns = phases.sum_by_worker(phases.sum_ns_by_window("wait", "transfer"))
    server_wait_ns = float(blocked_ns[list(phases.pieces.ranks).index(server)])
    wait_share = server_wait_ns / max(job_ns(trace), 1)
    return Tasks(server, wait_share, dict(sorted(held_ns_by_rank.items())))


def _measure_held_ns(trace: Trace, messages: pl.DataFrame) -> Ints:
    """Return for how long a rank held each task, ns, [task], by its messages with the server.

    A task lasts from the end of a receive to the begin of the next send; tasks with a collective
    call in them are left out.
    """
    is_sent = pl.col("op") == "send"
    at_ns = pl.when(is_sent).then("start_ns").otherwise("end_ns")
    moments = messages.select("process", at_ns=at_ns, is_sent=is_sent).drop_nulls("at_ns")
    moments = moments.sort("at_ns")
    if not moments.height:
        return np.zeros(0, np.int64)
    moments_ns, is_send = moments["at_ns"].to_numpy(), moments["is_sent"].to_numpy()
    receive_rows = np.flatnonzero(is_send[1:] & ~is_send[:-1])
    received_ns, sent_ns = moments_ns[receive_rows], moments_ns[receive_rows + 1]
    call_begins_ns = _list_call_begins(trace, int(moments["process"][0]))
    has_no_call = np.equal(
        *(np.searchsorted(call_begins_ns, times_ns) for times_ns in (received_ns, sent_ns))
    )
    return np.asarray((sent_ns - received_ns)[has_no_call], np.int64)


def _list_call_begins(trace: Trace, process: int) -> Ints:
    """Return when a process began collectives, ns, ascending, [call]."""
    begins_ns = [
        grid.start_ns[grid.is_made[:, column], column]
        for grid in trace.calls
        for column in np.flatnonzero(grid.processes == process).tolist()
    ]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *begins_ns]))
