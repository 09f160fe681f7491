"""Fixes: what the fix of a finding changes in a run, so that `tracelens whatif` can replay it.

A finding is priced by replaying the run with its fix. `tracelens whatif --what fix:N` replays the same
fix of finding N, so both state one number, and several fixes can be replayed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tracelens.errors import InvalidArgument
from tracelens.replay.edits.algorithms import join_calls
from tracelens.replay.edits.changed import Changed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Floats, Ints
    from tracelens.replay.links import Carrier
    from tracelens.replay.model import Model
    from tracelens.stats.cost_line import CostModel

__all__ = ["EditFix", "Fix", "JoinFix", "TransferFix", "WorkFix", "apply_fix"]


@dataclass(frozen=True)
class EditFix:
    """The finding is fixed by edits of `tracelens whatif`."""

    texts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class WorkFix:
    """Workers work less in some phases of some steps.

    `changes` are names of phases, and what is taken off them, ns, [step, worker]; `steps` are the
    numbers of these steps, ascending.
    """

    steps: Ints
    changes: tuple[tuple[tuple[str, ...], Floats], ...]

    def apply(self, changed: Changed) -> None:
        """Shorten the work of a run."""
        for names, effect in self.changes:
            changed.reduce_work(names, effect, self.steps)


@dataclass(frozen=True, eq=False)
class TransferFix:
    """Transfers take `takes` times their time, by what carries them, [step]."""

    steps: Ints
    takes: Mapping[Carrier, Floats]

    def apply(self, changed: Changed) -> None:
        """Shorten the transfers of a run."""
        changed.lag = changed.lag * changed.model.measure_transfer_factors(self.takes, self.steps)


@dataclass(frozen=True, eq=False)
class JoinFix:
    """Calls of a communicator are joined up to `nbytes`; in all steps if `steps` is None."""

    communicator: str
    op: str
    nbytes: int
    cost: CostModel
    steps: Ints | None = None

    def apply(self, changed: Changed) -> None:
        """Join the calls of a run.

        Raises:
            InvalidArgument: the run has no such calls.
        """
        model, joined = changed.model, 0
        for calls in model.calls:
            if not calls.can_be_joined(self.communicator, self.op):
                continue
            if self.steps is None or np.isin(calls.step, self.steps).any():
                join_calls(changed, self.cost, calls, self.nbytes, steps=self.steps)
                joined += 1
        if not joined:
            raise InvalidArgument("the calls that it joins are not in the replayed steps.")


Fix: TypeAlias = EditFix | WorkFix | TransferFix | JoinFix


def apply_fix(model: Model, fix: WorkFix | TransferFix) -> Changed:
    """Return a run with a fix."""
    changed = Changed(model)
    fix.apply(changed)
    return changed
