"""What the time of all workers was spent on: useful, or lost, by category.

Where a device's work was timed, the device decides: time is useful when it computes, for any activity
of the host meanwhile. What the partition of the host's time calls useful beyond that is lost to
communication, to copies, or, while the device does nothing, to launching: then it waits until the host
queues work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import CATEGORIES, TRANSFER, UNINSTRUMENTED, WAIT
from tracelens.accounting.device_time import find_device_work
from tracelens.accounting.phases import job_ns
from tracelens.arrays import sum_exactly
from tracelens.distil.outline import outlined
from tracelens.model.result import DeviceShares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.accounting.device_time import DeviceWork
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Array, Flags, Ints
    from tracelens.model.trace import Trace

# share of the time in which devices wait for launches: a span of less is not named [policy]
MIN_SHARE_OF_GAPS_TO_NAME: Final = 0.1
MAX_SPANS_BEFORE_GAPS: Final = 3  # spans: no more are named [policy]

_STATES: Final = range(4)
_COMPUTES, _IS_EXPOSED, _COPIES, _IS_IDLE = _STATES  # what a device does
_IS_COMMUNICATION: Final = np.isin(range(len(CATEGORIES)), (WAIT, TRANSFER))
COPIES: Final = "copies"  # a loss beside the categories of the partition


@dataclass(frozen=True, eq=False)
class SpentTime:
    """Nanoseconds of all workers: `useful_ns` by worker, and what was `lost`, by category.

    Categories are those of the partition that are not useful, and copies of devices. Of what is lost as
    idle, `launching_ns` is time in which a device waited for the host. `devices` is what devices did, of
    the time of workers that have one; null without any.
    """

    useful_ns: Ints
    lost: Mapping[str, int]
    launching_ns: int = 0
    devices: DeviceShares | None = None


def measure_spent_time(trace: Trace, phases: Phases, useful: tuple[str, ...]) -> SpentTime:
    """Add up what the time of all workers was spent on; `useful` are categories of the host's time."""
    is_useful = np.isin(CATEGORIES, useful)
    host_ns = sum_exactly(phases.spent)
    useful_ns = phases.by_worker(phases.sum_time(*useful))
    if any(outline.on_device for outline in outlined(trace).values()):
        return _correct_by_devices(trace, phases, is_useful, host_ns, useful_ns)
    return SpentTime(useful_ns, _to_losses(host_ns, is_useful))


def _to_losses(spent: Ints, is_useful: Flags) -> dict[str, int]:
    return {name: int(spent[at]) for at, name in enumerate(CATEGORIES) if not is_useful[at]}


def _correct_by_devices(
    trace: Trace, phases: Phases, is_useful: Flags, host_ns: Ints, useful_ns: Ints
) -> SpentTime:
    """Correct what hosts spent by what devices did meanwhile.

    `is_useful` and `host_ns`, the time of all hosts, are [category]; `useful_ns` is [worker].
    """
    gap_ns_by_span: Counter[str] = Counter()
    lets_wait = is_useful  # time of the host, [category], in which a device may wait for a launch
    if trace.recognition is not None and trace.workers.height == 1:
        # a profile of one rank shows no peer that it waits for, whatever its host does unseen
        lets_wait = is_useful | (np.arange(len(CATEGORIES)) == UNINSTRUMENTED)
    device_ns = np.zeros((len(_STATES), len(CATEGORIES)), object)  # sums may exceed 64 bits
    work = find_device_work(trace)
    workers = [index for index, process in enumerate(phases.pieces.processes) if process in work]
    for worker in workers:
        pieces = phases.pieces.of_worker(worker)
        states_ns = _measure_states(pieces, work[pieces.process])
        ns_by_state = np.array([_sum_by_category(pieces, state) for state in states_ns])
        useful_ns[worker] = ns_by_state[_COMPUTES].sum()
        device_ns += ns_by_state
        launch_wait_ns = states_ns[_IS_IDLE] * lets_wait[pieces.category]
        gap_ns_by_span += _find_spans_before_gaps(
            pieces, work[pieces.process], launch_wait_ns, phases.pieces.words
        )
    unseen_exposed_ns = device_ns[_IS_EXPOSED] * ~_IS_COMMUNICATION
    host_ns = host_ns - device_ns[_COMPUTES] - device_ns[_COPIES] - unseen_exposed_ns
    host_ns[TRANSFER] += unseen_exposed_ns.sum()
    launching_ns = int(device_ns[_IS_IDLE, lets_wait].sum())
    host_ns = host_ns - device_ns[_IS_IDLE] * (lets_wait & ~is_useful)
    lost_ns = _to_losses(host_ns, is_useful) | {COPIES: int(device_ns[_COPIES].sum())}
    lost_ns["idle"] += launching_ns
    compute, exposed, copies, _ = (device_ns.sum(axis=1) / _whole_ns(trace, workers)).tolist()
    shares = DeviceShares(
        compute,
        exposed,
        copies,
        launching_ns / _whole_ns(trace, workers),
        _find_largest(gap_ns_by_span),
    )
    return SpentTime(useful_ns, lost_ns, launching_ns, shares if workers else None)


def _whole_ns(trace: Trace, workers: Sequence[int]) -> int:
    return max(len(workers) * job_ns(trace), 1)


def _find_largest(gap_ns_by_span: Mapping[str, int]) -> dict[str, float]:
    """Return the names of host spans after which devices waited longest, with shares of that time."""
    total_ns = sum(gap_ns_by_span.values())
    shares = {
        name: ns / total_ns
        for name, ns in gap_ns_by_span.items()
        if ns >= MIN_SHARE_OF_GAPS_TO_NAME * total_ns > 0
    }
    return dict(sorted(shares.items(), key=lambda entry: -entry[1])[:MAX_SPANS_BEFORE_GAPS])


def _measure_states(pieces: WorkerPieces, work: DeviceWork) -> Array:
    """Measure how long a device was in each state within each piece, [state, piece], ns.

    States are computing, exposed communication, copies, nothing.
    """
    compute_ns, either_ns, busy_ns, profiled_ns = (
        np.diff(intervals.passed_before(pieces.bounds))
        for intervals in (work.compute, work.compute_or_communication, work.busy, work.windows)
    )
    state_ns = np.stack(
        [compute_ns, either_ns - compute_ns, busy_ns - either_ns, profiled_ns - busy_ns]
    )
    return np.where(profiled_ns > 0, state_ns, 0)


def _sum_by_category(pieces: WorkerPieces, ns: Ints) -> Ints:
    return np.bincount(pieces.category, ns, minlength=len(CATEGORIES)).astype(np.int64)


def _find_spans_before_gaps(
    pieces: WorkerPieces, work: DeviceWork, wait_ns: Ints, words: tuple[str, ...]
) -> Counter[str]:
    """Sum how long a device waited for launches, ns, by name of the host's span in which it ran dry.

    `wait_ns` is the time of such waits in each piece, ns. The name is empty without a span.
    """
    gap_begins_ns, gap_ends_ns = work.busy.end[:-1], work.busy.start[1:]
    wait_before_ns = np.concatenate([[0], np.cumsum(wait_ns)])
    origin_ns = pieces.bounds[0]  # times of today need more digits than fractions have
    waited_at_begin_ns, waited_at_end_ns = (
        np.interp(times_ns - origin_ns, pieces.bounds - origin_ns, wait_before_ns)
        for times_ns in (gap_begins_ns, gap_ends_ns)
    )
    piece_rows = np.searchsorted(pieces.bounds, gap_begins_ns, "right") - 1
    name_at_gap = pieces.name[np.clip(piece_rows, 0, len(wait_ns) - 1)]
    waited_ns = waited_at_end_ns - waited_at_begin_ns
    gap_ns_by_span: Counter[str] = Counter()
    for name, ns in zip(*_sum_by_key(name_at_gap, waited_ns), strict=True):
        gap_ns_by_span[words[name] if name >= 0 else ""] += int(ns)
    return gap_ns_by_span


def _sum_by_key(keys: Array, values: Array) -> tuple[list[int], list[float]]:
    distinct, index = np.unique(keys, return_inverse=True)
    return distinct.tolist(), np.bincount(index, values, minlength=len(distinct)).tolist()
