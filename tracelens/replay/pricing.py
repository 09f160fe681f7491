"""Price what findings would save on the event graph, as the edits of `tracelens whatif` do.

Of a long run a window of steps is replayed, in the middle of those that a finding concerns; what other
steps save is taken from what the steps of the window do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.phases import exposed_transfer
from tracelens.errors import InvalidArgument
from tracelens.replay.edits.algorithms import join_calls
from tracelens.replay.edits.changed import Changed
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.read import edited
from tracelens.replay.model import build_model
from tracelens.replay.whatif import Identity, measure_errors
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.calls import Calls
    from tracelens.replay.model import Model
    from tracelens.stats.cost_line import CostModel

__all__ = ["JoinedCalls", "price_edit", "price_faster_calls", "price_joined_calls"]

MAX_REPLAYED_CALLS: Final = 1 << 18  # calls times ranks, up to which a run is replayed as a whole
MIN_REPLAYED_STEPS: Final = 64  # of a longer run


@dataclass(frozen=True, eq=False)
class JoinedCalls:
    """What joining the calls of a communicator up to `nbytes` saves.

    `saved_ns` is of each replayed step with such calls; the run has `scale` times as many. A usual step
    has `messages` then, instead of `calls`.
    """

    saved_ns: Floats
    nbytes: int
    messages: int
    calls: int
    scale: float = 1.0


def price_faster_calls(
    trace: Trace, phases: Phases, takes: Mapping[str, Floats], steps: Ints, lost_ns: Floats
) -> Floats:
    """Return what each of some steps saves if their collectives take less time, ns.

    Args:
        trace: Whose collectives these are.
        phases: The partition of its time.
        takes: What share of its time on the wire each call takes then, by communicator, [step].
        steps: The step of each row, ascending.
        lost_ns: What all calls of each step take less then, in sum.
    """
    model = _model_around(trace, phases, steps)
    if model is None:
        return np.minimum(lost_ns, exposed_transfer(phases, steps))
    saved_ns = _attribute(model.measure_transfer_savings(takes, steps), model, steps)
    is_replayed = np.isin(steps, model.steps)
    saved_share = float(saved_ns.sum()) / max(float(lost_ns[is_replayed].sum()), 1.0)
    priced_ns: Floats = lost_ns * saved_share
    priced_ns[is_replayed] = saved_ns
    return priced_ns


def _attribute(saved_ns: Floats, model: Model, steps: Ints) -> Floats:
    """Return what those of some steps save that were replayed, ns.

    Other steps end earlier only because of calls of these, so what they save is added.
    """
    own_ns = np.maximum(saved_ns[np.isin(model.steps, steps)], 0.0)
    total_ns = max(float(saved_ns.sum()), 0.0)
    return np.asarray(own_ns * (total_ns / max(float(own_ns.sum()), 1.0)))


def price_joined_calls(
    trace: Trace,
    phases: Phases,
    communicator: str,
    op: str,
    cost: CostModel,
    *,
    steps: Ints | None = None,
) -> JoinedCalls | None:
    """Return what joining the calls of a communicator saves at best; None if that is not known.

    1, 2, 3, 4, 6, 8, 12 ... messages of a step's bytes are tried.

    Args:
        trace: Whose calls these are.
        phases: The partition of its time.
        communicator: Of the calls.
        op: What they do.
        cost: What such a call takes by its bytes; the line of the replay is used if it has one.
        steps: The steps whose calls are alike, and `cost` is for; None = all.
    """
    model = _model_around(trace, phases, phases.steps)
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
    return best and replace(best, scale=_scale(model, phases))


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
        )


def _part_counts(calls: int) -> list[int]:
    """Return into how many messages so many calls are tried to be joined."""
    powers = [1 << power for power in range(max(calls - 1, 0).bit_length())]
    return sorted(
        {count for power in powers for count in (power, power + power // 2) if count < calls}
    )


def price_edit(trace: Trace, phases: Phases, edit: str) -> float | None:
    """Return what an edit of `tracelens whatif` saves of the job, ns; None if it has no answer."""
    model = _model_around(trace, phases, phases.steps)
    if model is None:
        return None
    try:
        times = edited(model, [edit]).replayed()
    except (InvalidArgument, ValueError):
        return None
    saved_ns = model.lengths(model.usual) - model.lengths(times)
    return float(saved_ns.sum()) * _scale(model, phases)


def _model_around(trace: Trace, phases: Phases, steps: Ints) -> Model | None:
    """Return the model of the run, or of a window in the middle of some steps if it is long.

    None where its replay without edits differs from the run by more than answers may be relied upon.
    """
    calls = sum(grid.start_ns.size for grid in trace.calls)
    known = phases.steps[phases.steps >= 0]
    if calls <= MAX_REPLAYED_CALLS or len(known) <= MIN_REPLAYED_STEPS:
        return _take_if_reliable(build_model(trace, phases))
    count = max(len(known) * MAX_REPLAYED_CALLS // calls, MIN_REPLAYED_STEPS)
    middle = int(np.searchsorted(known, steps[len(steps) // 2]))
    first = min(max(middle - count // 2, 0), max(len(known) - count, 0))
    window = known[first : first + count]
    return _take_if_reliable(build_model(trace, phases, (int(window[0]), int(window[-1]))))


def _take_if_reliable(model: Model | None) -> Model | None:
    if model is None or not Identity(*measure_errors(model), kept=0.0).reliable:
        return None
    return model


def _scale(model: Model, phases: Phases) -> float:
    """Return how many times as many steps the run has as were replayed."""
    return int(np.count_nonzero(phases.steps >= 0)) / max(len(model.steps), 1)
