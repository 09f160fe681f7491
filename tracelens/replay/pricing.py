"""Price what findings would save on the event graph, as the edits of `tracelens whatif` do.

Of a long run a window of steps is replayed, in the middle of those that a finding concerns; what other
steps save is taken from what the steps of the window do.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.phases import exposed_transfer
from tracelens.errors import InvalidArgument
from tracelens.replay.delays import measure_side_by_side
from tracelens.replay.edits.algorithms import join_calls
from tracelens.replay.edits.changed import Changed
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.fixes import EditFix, JoinFix, apply_fix
from tracelens.replay.edits.read import edited
from tracelens.replay.trust import Ambiguity
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.edits.fixes import TransferFix, WorkFix
    from tracelens.replay.model import Model
    from tracelens.replay.trust import ChangedReplay, Identity
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
    """What faster collectives save: `saved_ns` is of each step that they are faster in.

    `fix` and `identity` are those of the replay, None where none is reliable.
    """

    saved_ns: Floats
    fix: TransferFix | None = None
    identity: Identity | None = None

    def measure_interval(self, job_ns: float) -> tuple[float, float]:
        """Return the 95 % interval of the saving, as shares of the job."""
        interval = bootstrap_interval(self.saved_ns, job_ns)
        return self.identity.widen(interval) if self.identity else interval


@dataclass(frozen=True, eq=False)
class JoinedCalls:
    """What joining the calls of a communicator saves, by a fix that joins them.

    `saved_ns` is of each replayed step with such calls, and of as many others as it stands for. A usual
    step has `messages` then, instead of `calls`.
    """

    saved_ns: Floats
    fix: JoinFix
    messages: int
    calls: int
    replay: ChangedReplay


@dataclass(frozen=True)
class WorkPrice:
    """What less work saves: a share of the job, with its 95 % interval; `fix` is what was replayed."""

    saving: float
    interval: tuple[float, float]
    fix: WorkFix | None


def price_less_work(
    replay: WindowedReplay | None, fix: WorkFix, job_ns: float, total: Floats | None = None
) -> WorkPrice:
    """Price less work of the workers in some phases.

    Args:
        replay: Of the run; None if it cannot be replayed.
        fix: One change of the workers' work.
        job_ns: How long the job took.
        total: Compute time, ns, [step, worker]. Without a reliable replay ranks are taken to work side
            by side and to meet in each step; None = nothing is saved then.
    """
    ((names, effect),) = fix.changes
    savings = None if replay is None else replay.measure_savings(names, effect, fix.steps)
    if savings is not None and savings.identity.reliable:
        interval = savings.widen(bootstrap_interval(savings.saved, job_ns), job_ns)
        return WorkPrice(float(savings.saved.sum()) / job_ns, interval, fix)
    saved_ns = np.zeros(len(effect))
    if total is not None:
        saved_ns = measure_side_by_side(np.nan_to_num(total, nan=0.0), effect)
    return WorkPrice(float(saved_ns.sum()) / job_ns, bootstrap_interval(saved_ns, job_ns), None)


def price_faster_calls(replay: WindowedReplay, fix: TransferFix, lost_ns: Floats) -> TransferPrice:
    """Price collectives that take less time.

    Args:
        replay: Of the run whose collectives these are.
        fix: How much less time they take, in which steps.
        lost_ns: What all calls of each step take less then, in sum.
    """
    steps = fix.steps
    model = replay.build_around(steps)
    replayed = None if model is None else replay.replay(apply_fix(model, fix))
    if model is None or replayed is None or not replayed.identity.reliable:
        return TransferPrice(np.minimum(lost_ns, exposed_transfer(replay.phases, steps)))
    saved_ns = _attribute(replayed.saved_ns, model, steps)
    is_replayed = np.isin(steps, model.steps)
    saved_share = float(saved_ns.sum()) / max(float(lost_ns[is_replayed].sum()), 1.0)
    priced_ns: Floats = lost_ns * saved_share
    priced_ns[is_replayed] = saved_ns
    return TransferPrice(priced_ns, fix, replayed.identity)


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
    least_ns: float,
    steps: Ints | None = None,
) -> JoinedCalls | None:
    """Return what joining the calls of a communicator saves at best; None if that is not known.

    1, 2, 3, 4, 6, 8, 12 ... messages of a step's bytes are tried. The best of those whose replay is
    reliable is returned.

    Args:
        replay: Of the run whose calls these are.
        communicator: Of the calls.
        op: What they do.
        cost: What such a call takes by its bytes; the line of the replay is used if it has one.
        least_ns: What it saves of the run at least; None is returned if it is less.
        steps: The steps whose calls are alike, and `cost` is for; None = all.
    """
    model = replay.build_around(replay.phases.steps)
    if model is None:
        return None
    lines = Costs(model.links).models if steps is None else {}
    tried: list[JoinedCalls] = []
    for calls in model.calls:
        if calls.can_be_joined(communicator, op):
            line = lines.get(model.links.lines.index(calls.line), cost)
            fix = JoinFix(communicator, op, 0, line, steps)
            tried += _try_joins(replay, model, calls, fix)
    best_first = sorted(tried, key=lambda joined: -joined.saved_ns.sum())
    gains = (joined for joined in best_first if joined.saved_ns.sum() >= least_ns)
    return next((joined for joined in gains if joined.replay.identity.reliable), None)


def _try_joins(
    replay: WindowedReplay, model: Model, calls: Calls, fix: JoinFix
) -> Iterator[JoinedCalls]:
    """Yield what joining calls into fewer and fewer messages saves: fixes with more and more bytes."""
    steps = np.unique(calls.step if fix.steps is None else np.intersect1d(calls.step, fix.steps))
    is_joined = np.isin(calls.step, steps)
    if not is_joined.any():
        return
    of_step = np.searchsorted(steps, calls.step[is_joined])
    usual_calls = int(np.median(np.bincount(of_step)))
    sizes = np.bincount(of_step, np.maximum(calls.nbytes[is_joined], 0))
    for parts in _part_counts(usual_calls):
        nbytes = int(np.ceil(np.median(sizes) / parts))
        changed = Changed(model)
        joined = join_calls(changed, fix.cost, calls, nbytes, steps=steps)
        messages = (len(joined) - np.count_nonzero(~is_joined)) / len(steps)
        replayed = replay.replay(changed)
        yield JoinedCalls(
            saved_ns=_attribute(replayed.saved_ns, model, steps) * _scale(model, replay.phases),
            fix=dataclasses.replace(fix, nbytes=nbytes),
            messages=max(round(messages), 1),
            calls=usual_calls,
            replay=replayed,
        )


def _part_counts(calls: int) -> list[int]:
    """Return into how many messages so many calls are tried to be joined."""
    powers = [1 << power for power in range(max(calls - 1, 0).bit_length())]
    return sorted(
        {count for power in powers for count in (power, power + power // 2) if count < calls}
    )


@dataclass(frozen=True)
class EditPrice:
    """What edits save: a share of the job, with its 95 % interval by the run's noise alone.

    Both are None where that is not known; `refusal` says why.
    """

    edits: tuple[str, ...]
    saving: float | None = None
    interval: tuple[float, float] | None = None
    refusal: str = ""

    @property
    def fix(self) -> EditFix | None:
        """What was replayed."""
        return None if self.saving is None else EditFix(self.edits)


def price_edits(
    replay: WindowedReplay,
    *edits: str,
    lost: tuple[Ints, Floats] | None = None,
    saving_only: bool = False,
) -> EditPrice:
    """Return what edits, made together, save of the job: what `tracelens whatif` answers.

    Args:
        replay: Of the run.
        edits: Such as ``placement=chunked``.
        lost: Steps, and what of their time the edits concern, ns, where that is not in all steps alike.
        saving_only: The saving is a bound of another one, so that its own interval is not needed.
    """
    if replay.trace.parted:
        return EditPrice(edits, refusal="ranks were left out")
    steps = replay.phases.steps[replay.phases.steps >= 0]
    model = replay.build_around(steps if lost is None else lost[0][lost[1] > 0])
    if model is None:
        return EditPrice(edits, refusal=replay.doubt or "some worker has no steps to replay")
    scale = 1.0
    if lost is not None:
        is_replayed = np.isin(lost[0], model.steps)
        share_replayed = float(lost[1][is_replayed].sum()) / max(float(lost[1].sum()), 1.0)
        scale = 1 / max(share_replayed * _scale(model, replay.phases), MIN_SHARE_REPLAYED)
    replayed_ns = float(model.lengths(model.recorded).sum())

    try:
        replayed = replay.replay(edited(model, edits))
        saved_ns = replayed.saved_ns * scale
    except InvalidArgument as error:
        return EditPrice(edits, refusal=str(error).removesuffix("."))
    saving = float(saved_ns.sum()) / replayed_ns
    if saving_only:
        return EditPrice(edits, saving)
    if doubt := replayed.identity.doubt:
        return EditPrice(edits, refusal=doubt)
    low, high = replayed.identity.widen(bootstrap_interval(saved_ns, replayed_ns))
    ambiguity = Ambiguity.find(
        replayed, replayed_ns / scale, lambda other: edited(other, edits).measure_savings_ns()
    )
    if ambiguity is not None:
        low, high = low + ambiguity.low - saving, high + ambiguity.high - saving
    return EditPrice(edits, saving, (low, high))


def _scale(model: Model, phases: Phases) -> float:
    """Return how many times as many steps the run has as were replayed."""
    return int(np.count_nonzero(phases.steps >= 0)) / max(len(model.steps), 1)
