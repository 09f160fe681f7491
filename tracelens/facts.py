"""What all analyses know about a run: each fact is computed once, when it is first asked for.

Analyses receive `Facts` and no results of each other. Whoever runs them owns the memory: a fact that no
later analysis needs is dropped (`Facts.drop`), and would be computed again if one asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracelens.accounting.communication import call_costs, transfers
from tracelens.accounting.communication.awaited_ranks import find_awaited_messages
from tracelens.accounting.compute_time import ComputeTime, measure_compute_time
from tracelens.accounting.core_waits import measure_core_wait_of_run
from tracelens.accounting.early_ends import find_early_end
from tracelens.accounting.efficiency import list_useful_categories
from tracelens.accounting.life.failures import Failure, find_failures
from tracelens.accounting.life.ledger import LifeLedger, measure_life
from tracelens.accounting.spent_time import SpentTime, measure_spent_time
from tracelens.accounting.stages import Roles, find_roles
from tracelens.caching import cached_property
from tracelens.replay.windows import WindowedReplay

if TYPE_CHECKING:
    from tracelens.accounting.communication.call_costs import CallCosts
    from tracelens.accounting.early_ends import EarlyEnd
    from tracelens.accounting.life.attempts import Attempt
    from tracelens.accounting.phases import Phases
    from tracelens.model.trace import Trace

__all__ = ["Facts"]


@dataclass(frozen=True, eq=False)
class Facts:
    """A run, the partition of its time, and facts derived from both."""

    trace: Trace
    phases: Phases

    @cached_property
    def roles(self) -> Roles:
        """Which ranks play the same part: stages of pipelines, and a rank that serves the others."""
        return find_roles(self.trace)

    @cached_property
    def early_end(self) -> EarlyEnd | None:
        """Which ranks ended training before the others; None where none did."""
        return find_early_end(self.trace, self.phases, self.roles)

    @cached_property
    def life_ledger(self) -> LifeLedger | None:
        """The attempts of the job and the uses of its wall time; None if TraceLens did not record it."""
        is_part = self.trace.partial_communicators or self.trace.is_cut_short
        return None if is_part or self.trace.is_snapshot else measure_life(self.trace)

    @cached_property
    def failures(self) -> list[Failure]:
        """How ranks of the reported attempt failed, the one that explains the others first."""
        return find_failures(self.trace, self.reported_attempt) if self.reported_attempt else []

    @cached_property
    def reported_attempt(self) -> Attempt | None:
        """The attempt whose ranks are analyzed; later ones may have failed before their first step."""
        if self.life_ledger is None:
            return None
        workers = {*self.trace.workers["process"]}
        attempts = self.life_ledger.lives
        analyzed = [
            attempt for attempt in attempts if workers & {life.process for life in attempt.lives}
        ]
        return analyzed[-1] if analyzed else attempts[-1]

    @cached_property
    def spent_time(self) -> SpentTime:
        """What of the workers' time was useful, and what was lost."""
        useful = list_useful_categories(self.phases, has_server=self.roles.server_rank is not None)
        return measure_spent_time(self.trace, self.phases, useful)

    @cached_property
    def compute_time(self) -> ComputeTime:
        """Compute time and waits as matrices: some hundred bytes a rank and step."""
        return measure_compute_time(self.trace, self.phases, self.roles)

    @cached_property
    def call_table(self) -> pl.DataFrame:
        """Every collective that all its ranks came to and left, with its time on the wire.

        A row a call, `accounting.communication.transfers.CALL_COLUMNS` and `algorithm`.
        """
        return transfers.join_algorithms(self.trace, transfers.list_collective_calls(self.trace))

    @cached_property
    def message_table(self) -> pl.DataFrame:
        """Every message between workers whose time on the link is known: a row a message."""
        return transfers.list_messages(self.trace)

    @cached_property
    def call_costs(self) -> CallCosts:
        """What collectives cost by their bytes: latency and time per byte, of each kind of call."""
        named = self.trace.communicators.select(pl.col("communicator").cast(pl.String), "ranks")
        members = {uid: frozenset(ranks) for uid, ranks in named.iter_rows()}
        return call_costs.measure_call_costs(self.call_table, members, lambda: self.message_table)

    @cached_property
    def awaited_messages(self) -> pl.DataFrame:
        """The waits in messages that the clocks can tell, each of one rank for another alone."""
        return find_awaited_messages(self.trace)

    @cached_property
    def core_wait_share(self) -> float | None:
        """For what share of the time of their steps ranks waited for a core; None where not read."""
        return measure_core_wait_of_run(self.trace)

    @cached_property
    def replay(self) -> WindowedReplay:
        """The event graph of the run; its parts are built when they are asked for."""
        return WindowedReplay(self.trace, self.phases)

    def drop(self, fact: str) -> None:
        """Free the memory of a fact."""
        self.__dict__.pop(fact, None)
