"""What the time of all workers was spent on: useful, or lost, by category.

Where a device's work was timed, the device decides: useful is when it computes, whatever the host does
meanwhile. What the partition of the host's time calls useful beyond that is lost to communication, to
copies, or, while the device does nothing, to launching: then it waits until the host queues work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import CATEGORIES, TRANSFER, WAIT
from tracelens.accounting.device_time import device_work
from tracelens.accounting.phases import job_ns
from tracelens.distil.outline import outlined
from tracelens.model.result import DeviceShares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.device_time import Work
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Array, Flags, Ints
    from tracelens.model.trace import Trace

__all__ = ["COPIES", "SpentTime", "measure_spent_time"]

# share of the time in which devices wait for launches: a span of the host with less is not named [policy]
MIN_SHARE_OF_GAPS_TO_NAME: Final = 0.1
MAX_SPANS_BEFORE_GAPS: Final = 3  # spans: no more are named [policy]

COPIES: Final = "copies"  # a loss beside the categories of the partition


@dataclass(frozen=True, eq=False)
class SpentTime:
    """Nanoseconds of all workers: `useful_ns` by worker, and what was `lost`, by category.

    Categories are those of the partition that are not useful, and copies of devices. Of what is lost
    as idle, `launching_ns` is time in which a device waited for the host. `devices` is what devices did, of
    the time of workers that have one; null without any.
    """

    useful_ns: Ints
    lost: Mapping[str, int]
    launching_ns: int = 0
    devices: DeviceShares | None = None


def measure_spent_time(trace: Trace, phases: Phases, useful: tuple[str, ...]) -> SpentTime:
    """Add up what the time of all workers was spent on; `useful` are categories of the host's time."""
    is_useful = np.isin(CATEGORIES, useful)
    spent = phases.spent.sum(axis=0, dtype=np.int64)
    useful_ns = phases.by_worker(phases.of(*useful))
    if any(outline.on_device for outline in outlined(trace).values()):
        return _of_devices(trace, phases, is_useful, (spent, useful_ns))
    return SpentTime(useful_ns, _lost(spent, is_useful))


def _lost(spent: Ints, is_useful: Flags) -> dict[str, int]:
    return {name: int(spent[at]) for at, name in enumerate(CATEGORIES) if not is_useful[at]}


def _of_devices(
    trace: Trace, phases: Phases, is_useful: Flags, of_hosts: tuple[Ints, Ints]
) -> SpentTime:
    spent, useful_ns = of_hosts
    before: Counter[str] = Counter()
    totals = np.zeros(3, np.int64)  # computing, exposed, copies
    launching_ns = count = 0
    work = device_work(trace)
    for worker, pieces in enumerate(phases.pieces):
        if pieces.process not in work:
            continue
        states = _states(pieces, work[pieces.process])
        by_state = np.array([_by_category(pieces, state) for state in states])
        compute, exposed, copies, idle = by_state
        lost_before = np.where(is_useful, 0, compute + copies)
        spent -= lost_before
        elsewhere = np.where(np.isin(np.arange(len(CATEGORIES)), (WAIT, TRANSFER)), 0, exposed)
        spent -= np.where(is_useful, 0, elsewhere)
        spent[TRANSFER] += elsewhere.sum()
        useful_ns[worker] = compute.sum()
        launching_ns += int(idle[is_useful].sum())
        before += _before_gaps(pieces, work[pieces.process], states[3] * is_useful[pieces.category], phases.pieces.words)
        totals += by_state[:3].sum(axis=1)
        count += 1
    lost = _lost(spent, is_useful)
    lost["idle"] += launching_ns
    whole = count * max(job_ns(trace), 1)
    return SpentTime(
        useful_ns,
        lost | {COPIES: int(totals[2])},
        launching_ns,
        DeviceShares(*(totals / whole).tolist(), launching_ns / whole, _largest(before))
        if count
        else None,
    )


def _largest(before: Mapping[str, int]) -> dict[str, float]:
    """Return the spans of the host after which devices waited longest, as shares of that time."""
    whole = sum(before.values())
    shares = {name: ns / whole for name, ns in before.items() if ns >= MIN_SHARE_OF_GAPS_TO_NAME * whole > 0}
    return dict(sorted(shares.items(), key=lambda entry: -entry[1])[:MAX_SPANS_BEFORE_GAPS])


def _states(pieces: WorkerPieces, work: Work) -> Array:
    """Return for how long a device did what in each piece: computing, exposed, copies, nothing."""
    compute, both, busy, inside = (
        np.diff(part.passed(pieces.bounds)) for part in (work.compute, work.both, work.busy, work.windows)
    )
    found = np.stack([compute, both - compute, busy - both, inside - busy])
    return np.where(inside > 0, found, 0)


def _by_category(pieces: WorkerPieces, ns: Ints) -> Ints:
    return np.bincount(pieces.category, ns, minlength=len(CATEGORIES)).astype(np.int64)


def _before_gaps(pieces: WorkerPieces, work: Work, launching: Ints, words: tuple[str, ...]) -> Counter[str]:
    """Return for how long a device waited for launches, by the host's span in which it ran dry."""
    gaps = work.busy.end[:-1], work.busy.start[1:]
    passed = np.concatenate([[0], np.cumsum(launching)])
    waited = np.diff(np.interp(gaps, pieces.bounds, passed), axis=0)[0]
    at = np.clip(np.searchsorted(pieces.bounds, gaps[0], "right") - 1, 0, len(launching) - 1)
    found: Counter[str] = Counter()
    for name, ns in zip(*_summed(pieces.name[at], waited), strict=True):
        found[words[name] if name >= 0 else ""] += int(ns)
    return found


def _summed(keys: Array, values: Array) -> tuple[list[int], list[float]]:
    known, place = np.unique(keys, return_inverse=True)
    return known.tolist(), np.bincount(place, values, minlength=len(known)).tolist()
