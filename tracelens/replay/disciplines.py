"""How links and processors of servers serve, as told by which rule explains their times by bytes."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.accounting.service import measure_link_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats, Ints

__all__ = ["Discipline", "TaskTimes", "find_disciplines", "measure_deviation_share", "measure_work"]

# share of capacity lost for each further message: these are tried for a link; above 0
# is incast [chosen]
CROWDINGS: Final = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
# ratio: a discipline with so much of another one's deviation is clearly better [chosen]
MAX_RATIO_OF_DEVIATIONS_IF_BETTER: Final = 0.9
# share of all work: paces that are a factor of e apart count as so much deviation [chosen]
WEIGHT_OF_PACE_DIFFERENCE: Final = 0.25
# share of all work: a smaller deviation tells no discipline apart [chosen]
NEGLIGIBLE_DEVIATION: Final = 1e-3
# share of a task: it waited for another task if it began as soon after that one [chosen]
MAX_GAP_IN_LINE: Final = 0.01
# share of the tasks' time: a resource that serves one at a time has no more overlap [chosen]
MAX_OVERLAP_IN_LINE: Final = 1e-3
# share of tasks: a resource serves one at a time if as many follow another worker's so closely [chosen]
MIN_SHARE_IN_LINE: Final = 0.05
# rounds: a line and the servers' factors are fitted as often [policy]
ROUNDS_OF_RESOURCE_FIT: Final = 3
# share of all work: times of tasks that deviate more do not depend on bytes [chosen]
MAX_DEVIATION_FROM_BYTES: Final = 0.5
MAX_INTERVALS_OF_FIT: Final = 20_000  # intervals: a discipline is chosen by the first ones [policy]


class Discipline(NamedTuple):
    """How tasks of one kind get their resource.

    `crowding` is the share of capacity lost for each further message at a time; None where one task
    follows the other. With `has_lane_per_worker` each worker has a resource of its own. With
    `has_streams`, tasks of one worker take turns, while those of other workers share.
    """

    crowding: float | None
    has_lane_per_worker: bool = False
    has_streams: bool = False

    @property
    def has_turns(self) -> bool:
        """Whether some task waits until another one is over."""
        return self.crowding is None or self.has_streams


_DISCIPLINES: Final = (
    Discipline(crowding=None),
    Discipline(crowding=0.0, has_streams=True),
    Discipline(crowding=0.0),
    Discipline(crowding=None, has_lane_per_worker=True),
    *(Discipline(crowding, has_streams=True) for crowding in CROWDINGS[1:]),
    *(Discipline(crowding) for crowding in CROWDINGS[1:]),
)


class TaskTimes(NamedTuple):
    """When tasks of one kind were at their resources, ns, with their bytes, servers and workers."""

    begin_ns: Floats
    end_ns: Floats
    nbytes: Floats
    server: Ints
    worker: Ints

    def take(self, rows: Flags | Ints) -> TaskTimes:
        """Return the intervals of some rows."""
        return TaskTimes._make(column[rows] for column in self)


class _Explanation(NamedTuple):
    """How closely disciplines of all kinds explain the recording; in order, the best comes first.

    `pace_difference_tenths` is by how many tenths of a factor the kinds' paces differ, `deviation_share`
    a share of all work. `discipline_indices` are those in `_DISCIPLINES`, simplest first, of each kind.
    """

    pace_difference_tenths: int
    discipline_indices: tuple[int, ...]
    deviation_share: float


def find_disciplines(kinds: Sequence[TaskTimes]) -> list[tuple[Discipline, ...]]:
    """Return the choices of disciplines, one for each kind, under which work goes by bytes most exactly.

    If several fit equally, all kinds get those under which their paces, ns per byte, differ least. Of
    these the simplest comes first. A choice follows for each other form of a kind's discipline, at any
    crowding, and then the most crowded choice. Empty if work of some kind does not go by bytes.
    """
    if not kinds:
        return [()]
    explanations = _explain(kinds)
    candidates = [
        tuple(_DISCIPLINES[index] for index in explanation.discipline_indices)
        for explanation in explanations
        if explanation.pace_difference_tenths == explanations[0].pace_difference_tenths
    ]
    choices: list[tuple[Discipline, ...]] = []
    known_forms: set[tuple[int, Discipline]] = set()
    for disciplines in candidates:
        forms = {
            (kind, discipline._replace(crowding=None if discipline.crowding is None else 0.0))
            for kind, discipline in enumerate(disciplines)
        }
        if not forms <= known_forms:
            known_forms |= forms
            choices.append(disciplines)
    if candidates:
        most_crowded = max(candidates, key=lambda choice: sum(one.crowding or 0 for one in choice))
        choices += [] if most_crowded in choices else [most_crowded]
    return choices


def measure_deviation_share(kinds: Sequence[TaskTimes]) -> float:
    """Return the share of all work that no discipline explains, 0 to 1; inf if bytes tell nothing."""
    return min((one.deviation_share for one in _explain(kinds)), default=np.inf)


def _explain(kinds: Sequence[TaskTimes]) -> list[_Explanation]:
    """Explain the tasks of all kinds by a discipline for each; return what is about as good as the best.

    Those with the most equal paces, ns per byte, come first: links carry bytes about as quickly to a
    server as from it. Different paces count as deviation, too.
    """
    explanations = []
    for combination in product(*(_measure_disciplines(kind).items() for kind in kinds)):
        indices = tuple(index for index, _ in combination)
        deviations, paces = zip(*(fit for _, fit in combination), strict=True)
        log_pace_ratio = float(np.log(max(paces) / min(paces)))
        deviation = float(np.mean(deviations)) + WEIGHT_OF_PACE_DIFFERENCE * log_pace_ratio
        explanations.append(
            _Explanation(
                pace_difference_tenths=round(10 * log_pace_ratio),
                discipline_indices=indices,
                deviation_share=deviation,
            )
        )
    least_deviation = min((one.deviation_share for one in explanations), default=0.0)
    max_deviation = least_deviation / MAX_RATIO_OF_DEVIATIONS_IF_BETTER + NEGLIGIBLE_DEVIATION
    return sorted(one for one in explanations if one.deviation_share <= max_deviation)


def _measure_disciplines(tasks: TaskTimes) -> dict[int, tuple[float, float]]:
    """Return by index in `_DISCIPLINES` how well a way to divide a resource among tasks explains them.

    That is the deviation of the work of tasks from pace times bytes, as a share of the work, and the
    pace, ns per byte. Empty if bytes tell nothing of the tasks. If tasks clearly follow each other, the
    result is that of index 0 alone, where tasks are done one after the other.
    """
    tasks = tasks.take(np.sort(np.argsort(tasks.begin_ns, kind="stable")[:MAX_INTERVALS_OF_FIT]))
    total_bytes = max(float(tasks.nbytes.sum()), 1.0)
    fits = {}
    for index, discipline in enumerate(_DISCIPLINES):
        work_ns = measure_work(discipline, tasks)
        pace = max(float(work_ns.sum()) / total_bytes, 1e-12)
        fits[index] = _deviate_from_line(work_ns, tasks), pace
    if min(deviation for deviation, _ in fits.values()) > MAX_DEVIATION_FROM_BYTES:
        return {}
    return {0: fits[0]} if _wait_for_each_other(tasks) else fits


def _wait_for_each_other(tasks: TaskTimes) -> bool:
    """Return True if tasks of several workers never overlap, and often begin as another one ends."""
    order = np.lexsort((tasks.end_ns, tasks.begin_ns, tasks.server))
    begin_ns, end_ns, _, server, worker = tasks.take(order)
    is_same_server = server[1:] == server[:-1]
    gap_ns = (begin_ns[1:] - end_ns[:-1])[is_same_server]
    length_ns = (end_ns - begin_ns)[1:][is_same_server]
    overlap_ns = float(np.maximum(-gap_ns, 0.0).sum())
    if overlap_ns > MAX_OVERLAP_IN_LINE * float(length_ns.sum()):
        return False
    is_other_worker = (worker[1:] != worker[:-1])[is_same_server]
    following_count = np.count_nonzero((gap_ns <= MAX_GAP_IN_LINE * length_ns) & is_other_worker)
    return bool(following_count > MIN_SHARE_IN_LINE * len(gap_ns))


def measure_work(discipline: Discipline, tasks: TaskTimes) -> Floats:
    """Return each task's work, ns, [task]: its time alone at its resource, if the discipline holds."""
    begin_ns, end_ns, _, server, worker = tasks
    group = server.astype(np.int64)
    if discipline.has_lane_per_worker or discipline.has_streams:
        group = group * (int(worker.max(initial=0)) + 2) + worker + 1
    # Tasks of a group take turns.
    start_ns = _find_starts(begin_ns, end_ns, group) if discipline.has_turns else begin_ns
    if discipline.crowding is None:
        return end_ns - start_ns
    work_ns = np.zeros(len(begin_ns))
    for server_number in np.unique(server):
        rows = np.flatnonzero(server == server_number)
        work_ns[rows] = measure_link_time(start_ns[rows], end_ns[rows], discipline.crowding)
    return work_ns


def _find_starts(begin_ns: Floats, end_ns: Floats, group: Ints) -> Floats:
    """Return when tasks had their resource, ns, [task], if those of a `group` end one by one."""
    order = np.lexsort((begin_ns, end_ns, group))
    # When the task before is over; the first one of a group waits for none.
    free_ns = np.append(-np.inf, end_ns[order][:-1])
    free_ns[np.append(True, np.diff(group[order]) != 0)[: len(order)]] = -np.inf
    start_ns = np.empty(len(begin_ns))
    start_ns[order] = np.maximum(begin_ns[order], free_ns)
    return start_ns


def _deviate_from_line(work_ns: Floats, tasks: TaskTimes) -> float:
    """Return the share of work that differs from a line by bytes times a factor of each server.

    `work_ns` is [task]; the line is fixed_ns + pace x bytes, with pace in ns per byte.
    """
    nbytes, server = tasks.nbytes, tasks.server
    server_factor, per_byte = np.ones(len(work_ns)), 1 / nbytes  # [task], as all arrays here
    design = np.stack([per_byte, np.ones(len(nbytes))], axis=1)
    line_ns = np.zeros(len(work_ns))
    for _ in range(ROUNDS_OF_RESOURCE_FIT):
        ns_per_byte = work_ns / server_factor * per_byte
        fixed_ns, pace = np.linalg.lstsq(design, ns_per_byte, rcond=None)[0].tolist()
        if fixed_ns < 0:
            fixed_ns, pace = 0.0, float(np.mean(ns_per_byte))
        line_ns = fixed_ns + max(pace, 0.0) * nbytes
        work_of_server, line_of_server = np.bincount(server, work_ns), np.bincount(server, line_ns)
        ratio_of_server = work_of_server / np.maximum(line_of_server, 1e-12)
        server_factor = np.maximum(ratio_of_server, 1e-12)[server]
    deviation_ns = np.abs(work_ns - server_factor * line_ns).sum()
    return float(deviation_ns / max(float(work_ns.sum()), 1e-12))
