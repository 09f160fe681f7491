"""Price what findings would save on the event graph, as the edits of `tracelens whatif` do.

Of a long run a window of steps is replayed, in the middle of those that a finding concerns; what other
steps save is taken from what the steps of the window do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.phases import measure_exposed_transfer_ns
from tracelens.errors import InvalidArgument
from tracelens.replay.delays import measure_side_by_side
from tracelens.replay.edits.algorithms import join_calls
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.fixes import EditFix, JoinFix, apply_fix
from tracelens.replay.edits.read import apply_edits
from tracelens.replay.edits.variant import Variant
from tracelens.replay.trust import Ambiguity
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.edits.fixes import TransferFix, WorkFix
    from tracelens.replay.event_graph import EventGraph
    from tracelens.replay.trust import Identity, VariantReplay
    from tracelens.replay.windows import WindowedReplay
    from tracelens.stats.cost_line import CostModel

__all__ = [
    "EditPrice",
    "JoinedCalls",
    "TransferPrice",
    "WorkPrice",
    "price_edits",
    "price_faster_calls",
    "price_joined_calls",
    "price_less_work",
]

# share of the loss: it is scaled up from what was replayed, as if that were no less [policy]
MIN_SHARE_REPLAYED: Final = 1e-3


@dataclass(frozen=True, eq=False)
class TransferPrice:
    """What faster collectives save, ns, [step that they are faster in].

    `fix` and `identity` are those of the replay, None where none is reliable.
    """

    saved_ns_by_step: Floats
    fix: TransferFix | None = None
    identity: Identity | None = None

    def measure_interval(self, job_ns: float) -> tuple[float, float]:
        """Return the 95 % interval of the saving, as shares of the job."""
        interval = bootstrap_interval(self.saved_ns_by_step, job_ns)
        return self.identity.widen_interval(interval) if self.identity else interval


@dataclass(frozen=True, eq=False)
class JoinedCalls:
    """What joining the calls of a communicator saves, by a fix that joins them.

    `saved_ns_by_step` is of each replayed step with such calls, scaled to the whole run. A median step
    has `messages_per_step` then, instead of `calls_per_step`.
    """

    saved_ns_by_step: Floats
    fix: JoinFix
    messages_per_step: int
    calls_per_step: int
    replay: VariantReplay


@dataclass(frozen=True)
class WorkPrice:
    """What less work saves: a share of the job, with its 95 % interval; `fix` is what was replayed."""

    saving_share: float
    saving_interval: tuple[float, float]
    fix: WorkFix | None


def price_less_work(
    replay: WindowedReplay | None, fix: WorkFix, job_ns: float, total_ns: Floats | None = None
) -> WorkPrice:
    """Price less work of the workers in some phases: one change, in a job of `job_ns`.

    Without a reliable replay ranks are taken to work side by side for `total_ns`, [step, worker], and to
    meet in each step; None = nothing is saved then.
    """
    savings = None if replay is None else replay.measure_savings(fix)
    if savings is not None and savings.identity.is_reliable:
        interval = savings.widen_interval(
            bootstrap_interval(savings.saved_ns_by_step, job_ns), job_ns
        )
        return WorkPrice(
            saving_share=float(savings.saved_ns_by_step.sum()) / job_ns,
            saving_interval=interval,
            fix=fix,
        )
    ((_, effect_ns),) = fix.phases_and_effects_ns
    saved_ns = np.zeros(len(effect_ns))
    if total_ns is not None:
        saved_ns = measure_side_by_side(np.nan_to_num(total_ns, nan=0.0), effect_ns)
    interval = bootstrap_interval(saved_ns, job_ns)
    return WorkPrice(
        saving_share=float(saved_ns.sum()) / job_ns, saving_interval=interval, fix=None
    )


def price_faster_calls(replay: WindowedReplay, fix: TransferFix, lost_ns: Floats) -> TransferPrice:
    """Price collectives that take less time: `lost_ns` less in sum, [step of the fix].

    Steps outside of the replayed window save the same share of their loss.
    """
    step_numbers = fix.step_numbers
    graph = replay.build_around(step_numbers)
    replayed = None if graph is None else replay.replay(apply_fix(graph, fix))
    if graph is None or replayed is None or not replayed.identity.is_reliable:
        return TransferPrice(
            np.minimum(lost_ns, measure_exposed_transfer_ns(replay.phases, step_numbers))
        )
    replayed_ns = _attribute_to_steps(replayed.saved_ns_by_step, graph, step_numbers)
    is_replayed = np.isin(step_numbers, graph.step_numbers)
    saved_share = float(replayed_ns.sum()) / max(float(lost_ns[is_replayed].sum()), 1.0)
    saved_ns: Floats = lost_ns * saved_share
    saved_ns[is_replayed] = replayed_ns
    return TransferPrice(saved_ns_by_step=saved_ns, fix=fix, identity=replayed.identity)


def _attribute_to_steps(saved_ns: Floats, graph: EventGraph, step_numbers: Ints) -> Floats:
    """Return the saving of some steps (numbers), ns, scaled to what all steps of the graph save."""
    of_steps_ns = np.maximum(saved_ns[np.isin(graph.step_numbers, step_numbers)], 0.0)
    total_ns = max(float(saved_ns.sum()), 0.0)
    return np.asarray(of_steps_ns * (total_ns / max(float(of_steps_ns.sum()), 1.0)))


def price_joined_calls(
    replay: WindowedReplay,
    communicator: str,
    op: str,
    cost: CostModel,
    *,
    min_saving_ns: float,
    step_numbers: Ints | None = None,
) -> JoinedCalls | None:
    """Price joining the calls of a communicator at best; None if that is not known.

    1, 2, 3, 4, 6, 8, 12 ... messages of a step's bytes are tried. The best of those whose replay is
    reliable is returned.

    Args:
        replay: Of the run whose calls these are.
        communicator: Of the calls.
        op: What they do.
        cost: What such a call takes by its bytes; the line of the replay is used if it has one.
        min_saving_ns: What it saves of the run at least; None is returned if it is less.
        step_numbers: The steps whose calls are alike, and `cost` is for; None = all.
    """
    graph = replay.build_around(replay.phases.step_numbers)
    if graph is None:
        return None
    line_costs = Costs(graph.edges).model_by_line if step_numbers is None else {}
    joins: list[JoinedCalls] = []
    for calls in graph.calls:
        if calls.can_be_joined(communicator, op):
            line_cost = line_costs.get(graph.edges.cost_lines.index(calls.cost_line), cost)
            fix = JoinFix(
                communicator, op, max_bytes=0, cost_model=line_cost, step_numbers=step_numbers
            )
            joins += _try_joins(replay, graph, calls, fix)
    best_first = sorted(joins, key=lambda join: -join.saved_ns_by_step.sum())
    gains = (join for join in best_first if join.saved_ns_by_step.sum() >= min_saving_ns)
    return next((join for join in gains if join.replay.identity.is_reliable), None)


def _try_joins(
    replay: WindowedReplay, graph: EventGraph, calls: Calls, fix: JoinFix
) -> Iterator[JoinedCalls]:
    """Yield what joining `calls` into ever fewer messages a step saves; `fix` says in which steps."""
    steps = np.unique(
        calls.step_numbers
        if fix.step_numbers is None
        else np.intersect1d(calls.step_numbers, fix.step_numbers)
    )
    is_joined = np.isin(calls.step_numbers, steps)
    if not is_joined.any():
        return
    step_index = np.searchsorted(steps, calls.step_numbers[is_joined])
    calls_per_step = int(np.median(np.bincount(step_index)))
    step_bytes = np.bincount(step_index, np.maximum(calls.nbytes[is_joined], 0))
    powers_of_two = [1 << power for power in range(max(calls_per_step - 1, 0).bit_length())]
    message_counts = {count for power in powers_of_two for count in (power, power + power // 2)}
    for message_count in sorted(count for count in message_counts if count < calls_per_step):
        message_bytes = int(np.ceil(np.median(step_bytes) / message_count))
        variant = Variant(graph)
        joined_bytes = join_calls(variant, fix.cost_model, calls, message_bytes, step_numbers=steps)
        messages_per_step = (len(joined_bytes) - np.count_nonzero(~is_joined)) / len(steps)
        replayed = replay.replay(variant)
        saved_ns = _attribute_to_steps(replayed.saved_ns_by_step, graph, steps)
        yield JoinedCalls(
            saved_ns_by_step=saved_ns * _measure_scale(graph, replay.phases),
            fix=replace(fix, max_bytes=message_bytes),
            messages_per_step=max(round(messages_per_step), 1),
            calls_per_step=calls_per_step,
            replay=replayed,
        )


@dataclass(frozen=True)
class EditPrice:
    """What edits save: a share of the job, with its 95 % interval by the run's noise alone.

    Both are None where that is not known; `refusal` says why.
    """

    edits: tuple[str, ...]
    saving_share: float | None = None
    saving_interval: tuple[float, float] | None = None
    refusal: str = ""

    @property
    def fix(self) -> EditFix | None:
        """What was replayed."""
        return None if self.saving_share is None else EditFix(self.edits)


def price_edits(
    replay: WindowedReplay,
    *edits: str,
    lost: tuple[Ints, Floats] | None = None,
    saving_only: bool = False,
) -> EditPrice:
    """Price edits that are made together, as `tracelens whatif` does.

    Args:
        replay: Of the run.
        edits: Such as ``placement=chunked``.
        lost: Steps, and what of their time the edits concern, ns, where that is not in all steps alike.
        saving_only: The saving is a bound of another one, so that its own interval is not needed.
    """
    if replay.trace.partial_communicators:
        return EditPrice(edits, refusal="ranks were left out")
    all_steps = replay.phases.step_numbers[replay.phases.step_numbers >= 0]
    lost_steps, lost_ns = (all_steps, np.ones(len(all_steps))) if lost is None else lost
    graph = replay.build_around(lost_steps[lost_ns > 0])
    if graph is None:
        return EditPrice(edits, refusal=replay.doubt or "some worker has no steps to replay")
    scale = 1.0  # from the replayed steps to all of them
    if lost is not None:
        replayed_lost_ns = lost_ns[np.isin(lost_steps, graph.step_numbers)]
        share_replayed = float(replayed_lost_ns.sum()) / max(float(lost_ns.sum()), 1.0)
        share_replayed *= _measure_scale(graph, replay.phases)
        scale = 1 / max(share_replayed, MIN_SHARE_REPLAYED)
    window_ns = float(graph.measure_steps_ns(graph.recorded_times_ns).sum())
    try:
        variant_replay = replay.replay(apply_edits(graph, edits))
        saved_ns = variant_replay.saved_ns_by_step * scale
    except InvalidArgument as error:
        return EditPrice(edits, refusal=str(error).removesuffix("."))
    saving = float(saved_ns.sum()) / window_ns
    if saving_only:
        return EditPrice(edits, saving_share=saving)
    if doubt := variant_replay.identity.doubt:
        return EditPrice(edits, refusal=doubt)
    interval = variant_replay.identity.widen_interval(bootstrap_interval(saved_ns, window_ns))
    ambiguity = Ambiguity.from_alternatives(
        variant_replay, window_ns / scale, lambda other_graph: apply_edits(other_graph, edits)
    )
    return EditPrice(
        edits,
        saving_share=saving,
        saving_interval=ambiguity.widen_interval(interval) if ambiguity else interval,
    )


def _measure_scale(graph: EventGraph, phases: Phases) -> float:
    """Return the ratio of the run's steps to those that were replayed."""
    return int(np.count_nonzero(phases.step_numbers >= 0)) / max(len(graph.step_numbers), 1)
