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
from tracelens.distil.outline import list_outlines
from tracelens.model.result import DeviceShares

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """What the time of all workers was spent on: `useful_ns`, [worker], and what all lost, by category.

    Categories are those of the partition that are not useful, and copies of devices. Of what is lost as
    idle, `launching_ns` is time in which a device waited for the host. `device_shares` says what devices
    did, of the time of workers that have one; None without any.
    """

    useful_ns: Ints
    lost_ns_by_category: Mapping[str, int]
    launching_ns: int = 0
    device_shares: DeviceShares | None = None


def measure_spent_time(trace: Trace, phases: Phases, useful: tuple[str, ...]) -> SpentTime:
    """Add up what the time of all workers was spent on; `useful` are categories of the host's time."""
    is_useful = np.isin(CATEGORIES, useful)
    host_ns = sum_exactly(phases.spent_ns)
    useful_ns = phases.sum_by_worker(phases.sum_ns_by_window(*useful))
    if any(outline.device_span_count for outline in list_outlines(trace).values()):
        return _correct_by_devices(trace, phases, is_useful, host_ns, useful_ns)
    return SpentTime(useful_ns, lost_ns_by_category=_list_losses(host_ns, is_useful))


def _list_losses(host_ns: Ints, is_useful: Flags) -> dict[str, int]:
    """Return the time of each category that is not useful, by name; both are [category]."""
    return {
        name: int(ns)
        for name, ns, is_useful_time in zip(CATEGORIES, host_ns, is_useful, strict=True)
        if not is_useful_time
    }


def _correct_by_devices(
    trace: Trace, phases: Phases, is_useful: Flags, host_ns: Ints, useful_ns: Ints
) -> SpentTime:
    """Correct what hosts spent by what devices did meanwhile.

    `is_useful` and `host_ns`, the time of all hosts, are [category]; `useful_ns` is [worker], and
    changed in place.
    """
    gap_ns_by_span: Counter[str] = Counter()
    lets_wait = is_useful  # time of the host, [category], in which a device may wait for a launch
    if trace.recognition is not None and trace.workers.height == 1:
        # a profile of one rank shows no peer that it waits for, whatever its host does unseen
        lets_wait = is_useful | (np.arange(len(CATEGORIES)) == UNINSTRUMENTED)
    # [state of devices, category of hosts]; sums may exceed 64 bits
    device_ns = np.zeros((len(_STATES), len(CATEGORIES)), object)
    work_by_process, processes = find_device_work(trace), phases.pieces.processes
    workers = [index for index, process in enumerate(processes) if process in work_by_process]
    for worker in workers:
        pieces, work = phases.pieces.unpack_worker(worker), work_by_process[processes[worker]]
        states_ns = _measure_states(pieces, work)  # [state, piece]
        own_ns = np.array([_sum_by_category(pieces, state_ns) for state_ns in states_ns])
        useful_ns[worker] = own_ns[_COMPUTES].sum()
        device_ns += own_ns
        launch_wait_ns = states_ns[_IS_IDLE] * lets_wait[pieces.category_codes]
        gap_ns_by_span += _sum_gaps_by_span(pieces, work, launch_wait_ns, phases.pieces.span_names)
    unseen_exposed_ns = device_ns[_IS_EXPOSED] * ~_IS_COMMUNICATION
    host_ns = host_ns - device_ns[_COMPUTES] - device_ns[_COPIES] - unseen_exposed_ns
    host_ns[TRANSFER] += unseen_exposed_ns.sum()
    launching_ns = int(device_ns[_IS_IDLE, lets_wait].sum())
    host_ns = host_ns - device_ns[_IS_IDLE] * (lets_wait & ~is_useful)
    lost_ns = _list_losses(host_ns, is_useful) | {COPIES: int(device_ns[_COPIES].sum())}
    lost_ns["idle"] += launching_ns
    whole_ns = max(len(workers) * job_ns(trace), 1)
    compute, exposed, copies, _ = (device_ns.sum(axis=1) / whole_ns).tolist()
    shares = DeviceShares(
        compute,
        exposed,
        copies,
        launching=launching_ns / whole_ns,
        host_before=_select_longest_gaps(gap_ns_by_span),
    )
    return SpentTime(
        useful_ns,
        lost_ns_by_category=lost_ns,
        launching_ns=launching_ns,
        device_shares=shares if workers else None,
    )


def _select_longest_gaps(gap_ns_by_span: Mapping[str, int]) -> dict[str, float]:
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
        np.diff(intervals.covered_ns_before(pieces.bounds_ns))
        for intervals in (
            work.compute_intervals,
            work.compute_or_communication_intervals,
            work.busy_intervals,
            work.step_windows,
        )
    )
    state_ns = np.stack(
        [compute_ns, either_ns - compute_ns, busy_ns - either_ns, profiled_ns - busy_ns]
    )
    return np.where(profiled_ns > 0, state_ns, 0)


def _sum_by_category(pieces: WorkerPieces, ns: Ints) -> Ints:
    """Sum times, [piece], up by the category of their pieces, [category]."""
    return np.bincount(pieces.category_codes, ns, minlength=len(CATEGORIES)).astype(np.int64)


def _sum_gaps_by_span(
    pieces: WorkerPieces, work: DeviceWork, wait_ns: Ints, span_names: tuple[str, ...]
) -> Counter[str]:
    """Sum how long a device waited for launches, ns, by name of the host's span in which it ran dry.

    `wait_ns`, [piece], is the time of such waits. The name is empty without a span.
    """
    gap_begins_ns, gap_ends_ns = work.busy_intervals.end_ns[:-1], work.busy_intervals.start_ns[1:]
    wait_before_ns = np.concatenate([[0], np.cumsum(wait_ns)])  # at each bound of pieces
    origin_ns = pieces.bounds_ns[0]  # times of today need more digits than fractions have
    waited_at_begin_ns, waited_at_end_ns = (
        np.interp(times_ns - origin_ns, pieces.bounds_ns - origin_ns, wait_before_ns)
        for times_ns in (gap_begins_ns, gap_ends_ns)
    )
    piece_rows = np.searchsorted(pieces.bounds_ns, gap_begins_ns, "right") - 1
    name_code_at_gap = pieces.name_codes[np.clip(piece_rows, 0, len(wait_ns) - 1)]
    waited_ns = waited_at_end_ns - waited_at_begin_ns  # in each gap
    name_codes, code_index = np.unique(name_code_at_gap, return_inverse=True)
    sums_ns = np.bincount(code_index, waited_ns, minlength=len(name_codes))
    gap_ns_by_span: Counter[str] = Counter()
    for name_code, ns in zip(name_codes.tolist(), sums_ns.tolist(), strict=True):
        gap_ns_by_span[span_names[name_code] if name_code >= 0 else ""] += int(ns)
    return gap_ns_by_span
