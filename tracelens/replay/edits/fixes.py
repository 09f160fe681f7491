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
from tracelens.replay.edits.variant import Variant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Floats, Ints
    from tracelens.replay.edges import Carrier
    from tracelens.replay.event_graph import EventGraph
    from tracelens.stats.cost_line import CostModel

__all__ = ["EditFix", "Fix", "JoinFix", "TransferFix", "WorkFix", "apply_fix"]


@dataclass(frozen=True)
class EditFix:
    """Fix a finding by edits (texts) of `tracelens whatif`."""

    edits: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class WorkFix:
    """Let workers work less in some phases of some steps.

    Each of `phases_and_effects_ns` is the names of phases, and what is taken off them, ns,
    [step, worker]; steps are in ascending order.
    """

    step_numbers: Ints
    phases_and_effects_ns: tuple[tuple[tuple[str, ...], Floats], ...]

    def apply(self, variant: Variant) -> None:
        """Shorten the work of a run."""
        for phases, effect_ns in self.phases_and_effects_ns:
            variant.reduce_work(phases, effect_ns, self.step_numbers)


@dataclass(frozen=True, eq=False)
class TransferFix:
    """Multiply the time of transfers in some steps by a ratio per carrier, [step]."""

    step_numbers: Ints
    ratios_by_carrier: Mapping[Carrier, Floats]

    def apply(self, variant: Variant) -> None:
        """Shorten the transfers of a run."""
        lag_factors = variant.graph.measure_transfer_factors(
            self.ratios_by_carrier, self.step_numbers
        )
        variant.lag_ns = variant.lag_ns * lag_factors


@dataclass(frozen=True, eq=False)
class JoinFix:
    """Join calls up to `max_bytes`, in some steps (None = all); they then take what the model says."""

    communicator: str
    op: str
    max_bytes: int
    cost_model: CostModel
    step_numbers: Ints | None = None

    def apply(self, variant: Variant) -> None:
        """Join the calls of a run."""
        has_joined = False
        for calls in variant.graph.calls:
            is_in_steps = (
                self.step_numbers is None or np.isin(calls.step_numbers, self.step_numbers).any()
            )
            if is_in_steps and calls.can_be_joined(self.communicator, self.op):
                join_calls(
                    variant, self.cost_model, calls, self.max_bytes, step_numbers=self.step_numbers
                )
                has_joined = True
        if not has_joined:
            raise InvalidArgument("the calls that it joins are not in the replayed steps.")


Fix: TypeAlias = EditFix | WorkFix | TransferFix | JoinFix


def apply_fix(graph: EventGraph, fix: WorkFix | TransferFix) -> Variant:
    """Return the variant of a run with a fix."""
    variant = Variant(graph)
    fix.apply(variant)
    return variant
