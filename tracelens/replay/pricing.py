"""Price what findings would save on the event graph, as the edits of `tracelens whatif` do.

Of a long run a window of steps is replayed, in the middle of those that a finding concerns; what other
steps save is taken from what the steps of the window do.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.accounting.phases import exposed_transfer
from tracelens.errors import InvalidArgument
from tracelens.replay.edits.algorithms import join_calls
from tracelens.replay.edits.changed import Changed
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.read import edited
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.fixes import TransferFix
    from tracelens.replay.model import Model
    from tracelens.replay.windows import WindowedReplay
    from tracelens.stats.cost_line import CostModel

__all__ = ["JoinedCalls", "price_edit", "price_faster_calls", "price_joined_calls"]


@dataclass(frozen=True, eq=False)
class JoinedCalls:
    """What joining the calls of a communicator up to `nbytes` saves.

    `saved_ns` is of each replayed step with such calls; the run has `scale` times as many. A usual step
    has `messages` then, instead of `calls`. `cost` is what a call takes by its bytes.
    """

    saved_ns: Floats
    nbytes: int
    messages: int
    calls: int
    cost: CostModel
    scale: float = 1.0


def price_faster_calls(
    replay: WindowedReplay, fix: TransferFix, lost_ns: Floats
) -> tuple[Floats, TransferFix | None]:
    """Return what each step of a fix saves, ns, and the fix; None where no replay is reliable.

    Args:
        replay: Of the run whose collectives these are.
        fix: How much less time they take, in which steps.
        lost_ns: What all calls of each step take less then, in sum.
    """
    steps = fix.steps
    model = replay.build_around(steps)
    if model is None:
        return np.minimum(lost_ns, exposed_transfer(replay.phases, steps)), None
    changed = Changed(model, model.links.lag.copy())
    fix.apply(changed)
    saved_ns = model.lengths(model.usual) - model.lengths(changed.replayed())
    saved_ns = _attribute(saved_ns, model, steps)
    is_replayed = np.isin(steps, model.steps)
    saved_share = float(saved_ns.sum()) / max(float(lost_ns[is_replayed].sum()), 1.0)
    priced_ns: Floats = lost_ns * saved_share
    priced_ns[is_replayed] = saved_ns
    return priced_ns, fix


def _attribute(saved_ns: Floats, model: Model, steps: Ints) -> Floats:
    """Return what those of some steps save that were replayed, ns.

    Other steps end earlier only because of calls of these, so what they save is added.
    """
    own_ns = np.maximum(saved_ns[np.isin(model.steps, steps)], 0.0)
    total_ns = max(float(saved_ns.sum()), 0.0)
    return np.asarray(own_ns * (total_ns / max(float(own_ns.sum()), 1.0)))


def price_joined_calls(
    replay: WindowedReplay,
    communicator: str,
    op: str,
    cost: CostModel,
    *,
    steps: Ints | None = None,
) -> JoinedCalls | None:
    """Return what joining the calls of a communicator saves at best; None if that is not known.

    1, 2, 3, 4, 6, 8, 12 ... messages of a step's bytes are tried.

    Args:
        replay: Of the run whose calls these are.
        communicator: Of the calls.
        op: What they do.
        cost: What such a call takes by its bytes; the line of the replay is used if it has one.
        steps: The steps whose calls are alike, and `cost` is for; None = all.
    """
    model = replay.build_around(replay.phases.steps)
    if model is None:
        return None
    costs, number = Costs(model.links), COLLECTIVES.index(op)
    best = None
    for calls, moment in zip(model.calls, model.calls_at, strict=True):
        if calls.uid != communicator or calls.op != number or calls.is_rooted:
            continue
        line = cost
        if steps is None:
            line = costs.models.get(model.links.lines.index(calls.line), cost)
        chosen = calls.step if steps is None else np.intersect1d(calls.step, steps)
        for joined in _try_joins(model, calls, moment, line, np.unique(chosen)):
            if best is None or joined.saved_ns.sum() > best.saved_ns.sum():
                best = joined
    return best and dataclasses.replace(best, scale=_scale(model, replay.phases))


def _try_joins(
    model: Model, calls: Calls, moment: int, cost: CostModel, steps: Ints
) -> Iterator[JoinedCalls]:
    """Yield what joining the calls of some steps into fewer and fewer messages saves."""
    is_joined = np.isin(calls.step, steps)
    if not is_joined.any():
        return
    of_step = np.searchsorted(steps, calls.step[is_joined])
    usual_calls = int(np.median(np.bincount(of_step)))
    sizes = np.bincount(of_step, np.maximum(calls.nbytes[is_joined], 0))
    for parts in _part_counts(usual_calls):
        nbytes = int(np.ceil(np.median(sizes) / parts))
        changed = Changed(model, model.links.lag.copy())
        joined = join_calls(changed, cost, calls, moment, nbytes, steps=steps)
        saved_ns = model.lengths(model.usual) - model.lengths(changed.replayed())
        messages = (len(joined) - np.count_nonzero(~is_joined)) / len(steps)
        yield JoinedCalls(
            saved_ns=_attribute(saved_ns, model, steps),
            nbytes=nbytes,
            messages=max(round(messages), 1),
            calls=usual_calls,
            cost=cost,
        )


def _part_counts(calls: int) -> list[int]:
    """Return into how many messages so many calls are tried to be joined."""
    powers = [1 << power for power in range(max(calls - 1, 0).bit_length())]
    return sorted(
        {count for power in powers for count in (power, power + power // 2) if count < calls}
    )


def price_edit(replay: WindowedReplay, edit: str) -> Floats | None:
    """Return what an edit of `tracelens whatif` saves, ns, [replayed step]; None if it has no answer.

    Of a long run some steps are replayed. Their savings are scaled so that the sum is that of the run.
    """
    model = replay.build_around(replay.phases.steps)
    if model is None:
        return None
    try:
        times = edited(model, [edit]).replayed()
    except (InvalidArgument, ValueError):
        return None
    saved_ns = model.lengths(model.usual) - model.lengths(times)
    return np.asarray(saved_ns * _scale(model, replay.phases))


def _scale(model: Model, phases: Phases) -> float:
    """Return how many times as many steps the run has as were replayed."""
    return int(np.count_nonzero(phases.steps >= 0)) / max(len(model.steps), 1)
