"""What all analyses know about a run: each fact is computed once, when it is first asked for.

Analyses receive `Facts` and no results of each other. Whoever runs them owns the memory: a fact that no
later analysis needs is dropped (`Facts.drop`), and would be computed again if one asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.accounting.compute_time import ComputeTime, measure_compute_time
from tracelens.accounting.stages import Roles, find_roles
from tracelens.caching import cached_property
from tracelens.replay.windows import WindowedReplay

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.model.trace import Trace

__all__ = ["Facts"]


@dataclass(frozen=True, eq=False)
class Facts:
    """A run, the partition of its time, and what follows from these."""

    trace: Trace
    phases: Phases

    @cached_property
    def roles(self) -> Roles:
        """Which ranks play the same part: stages of pipelines, and a rank that serves the others."""
        return find_roles(self.trace)

    @cached_property
    def compute_time(self) -> ComputeTime:
        """Compute time and waits as matrices: some hundred bytes a rank and step."""
        return measure_compute_time(self.trace, self.phases, self.roles)

    @cached_property
    def replay(self) -> WindowedReplay:
        """The event graph of the run; its parts are built when they are asked for."""
        return WindowedReplay(self.trace, self.phases)

    def drop(self, fact: str) -> None:
        """Free the memory of a fact."""
        self.__dict__.pop(fact, None)
