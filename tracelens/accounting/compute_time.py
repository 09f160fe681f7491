"""Compute time of every rank, step and phase as matrices, and the workload that the ranks were given.

Compute time is what a worker spent computing, without waits. Workload is the samples and
tokens: whether who takes longer simply has more to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, COMPUTE_CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.stages import find_roles
from tracelens.accounting.workers import AMOUNTS
from tracelens.caching import cached_property
from tracelens.model import fmt
from tracelens.model.calls import stretch
from tracelens.stats.robust import medians

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.stages import Roles, Stages
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.trace import Trace


# share of a rank's time: a smaller loss is not searched for its place in the code [policy]
LEAST_LOSS: Final = 0.005
WARM_UP: Final = 5  # steps: not judged; caches, allocators and bucket layouts settle [chosen]
AFTER_MEETING: Final = ("update", "checkpoint")  # what follows the meeting of a step
WAIT_CATEGORIES: Final = ("wait", "ps_queue")
COMPUTING: Final = ("forward", "backprop")
# share: a rank's samples or tokens beyond its peers' get a sentence from here on [policy]
MIN_MORE_WORK_TO_REPORT: Final = 0.05
# ratio: forward and backprop of a step with more work are longer in a proportion as near to 1 [chosen]
MIN_PROPORTION_OF_MORE_WORK: Final = 0.5
# share of variance: samples or tokens are the reason for uneven work from here on [chosen]
EXPLAINS_MOST: Final = 0.5
# share of variance: samples or tokens are not the reason for uneven work up to here [chosen]
EXPLAINS_HARDLY: Final = 0.1
# times: peers that make so many more steps have taken over a rank's work [chosen]
MIN_RATIO_OF_STEPS_IF_WORK_LEFT: Final = 1.5


@dataclass(frozen=True, eq=False)
class ComputeTime:
    """Matrices in nanoseconds, [step, rank] or [phase, step, rank]; nan where a rank lacks a step.

    `settled` says which rows (steps) statistics may use: not those of the warm-up, nor those that
    were extraordinarily long on every rank in the same phases. `parted`: other ranks were left out as
    asked, so waits cannot be assigned to ranks. `stages` separates ranks that play different
    parts; `server` (a column) is no peer of those whom it serves.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: Ints
    phases: tuple[str, ...]
    own: Floats
    length: Floats
    wait: Floats
    settled: Flags
    parted: bool = False
    stages: Stages | None = None
    server: int | None = None

    @cached_property
    def total(self) -> Floats:
        """Compute time of all phases."""
        return np.asarray(self.own.sum(axis=0))

    @cached_property
    def between_synchronizations(self) -> Floats:
        """Compute time from the synchronization point of a step to that of the next one."""
        follows_meeting = np.isin(self.phases, AFTER_MEETING)
        before_ns = self.own[~follows_meeting].sum(axis=0)
        next_ns = np.concatenate([before_ns[1:], np.zeros_like(before_ns[:1])])
        return np.asarray(self.own[follows_meeting].sum(axis=0) + next_ns)

    @cached_property
    def levelled(self) -> ComputeTime:
        """The same ranks as if all stages had equally much to do, so that any can be compared with any.

        In each phase and step the median rank of every stage is moved to the mean of all stages. Of two
        ranks, the slower one is not usual; of one alone it is not known what is, so only what it takes
        beyond its own median step is left. A server takes at least what those take whom it serves.
        """
        if self.server is not None:
            compute_ns = self.own.copy()
            for phase_ns in compute_ns:
                typical_ns = self._usual_of(np.delete(phase_ns, self.server, axis=1))
                phase_ns[:, self.server] = np.maximum(phase_ns[:, self.server], typical_ns)
            return replace(self, own=compute_ns)
        if self.stages is None:
            return self
        compute_ns = self.own.copy()
        for phase_ns in compute_ns:
            typical_of_stages = [
                self._usual_of(phase_ns[:, members]) for members in self.stages.members
            ]
            mean_ns = medians(np.stack(typical_of_stages)[:, self.settled_rows], axis=1).mean()
            for members, typical_ns in zip(self.stages.members, typical_of_stages, strict=True):
                phase_ns[:, members] += mean_ns - typical_ns[:, None]
        return replace(self, own=compute_ns, stages=None)

    def _usual_of(self, peers: Floats) -> Floats:
        """Return the typical time of the ranks of a stage, [step], ns."""
        if peers.shape[1] > 2:
            return medians(peers, axis=1)
        if peers.shape[1] == 2:
            return np.asarray(np.fmin(*peers.T))
        return np.full(len(peers), medians(peers[self.settled_rows, 0], axis=0))

    def peers_of(self, ranks: tuple[int, ...]) -> Indices:
        """Return the ranks (columns) that some are compared with: of the same stages, but not they."""
        is_peer = np.ones(len(self.ranks), np.bool_)
        if self.stages is not None:
            is_peer = np.isin(self.stages.stage, self.stages.stage[list(ranks)])
        is_peer[[*ranks, *([] if self.server is None else [self.server])]] = False
        return np.flatnonzero(is_peer)

    @cached_property
    def steps_done(self) -> Ints:
        """How many steps each rank has made."""
        return np.asarray(np.count_nonzero(~np.isnan(self.total), axis=0), np.int64)

    def work_left_to_others(self, ranks: tuple[int, ...]) -> bool:
        """Return True if some ranks of a server made clearly fewer steps than their peers meanwhile.

        Then all take work at their own pace, and none waits for another.
        """
        peers = self.peers_of(ranks)
        if self.server is None or not len(peers):
            return False
        most_steps = float(self.steps_done[list(ranks)].max())
        return most_steps * MIN_RATIO_OF_STEPS_IF_WORK_LEFT <= float(
            np.median(self.steps_done[peers])
        )

    def compared_with(self, ranks: tuple[int, ...]) -> Indices:
        """Return the peers of some ranks (columns); where their stages have no others, all others."""
        peers = self.peers_of(ranks)
        return peers if len(peers) else np.delete(np.arange(len(self.ranks)), ranks)

    @cached_property
    def settled_rows(self) -> slice | Indices:
        """The rows that statistics may use: of most runs a stretch, so that to take them is no copy."""
        return stretch(np.flatnonzero(self.settled))

    @cached_property
    def step_ns(self) -> float:
        """The length of a typical step."""
        lengths_ns = self.length[self.settled_rows] if self.settled.any() else self.length
        return float(np.nanmedian(lengths_ns)) if lengths_ns.size else 0.0

    @cached_property
    def usual_ns(self) -> float:
        """The compute time of a typical rank in a typical step."""
        return float(np.nanmedian(self.total[self.settled_rows]))


def measure_compute_time(trace: Trace, phases: Phases, roles: Roles | None = None) -> ComputeTime:
    """Build the matrices of all main workers; phases that never occur are left out.

    Args:
        trace: A run.
        phases: The partition of its time.
        roles: The parts that ranks play, if they are known already.
    """
    roles = roles or find_roles(trace)
    workers = trace.workers
    is_of_worker = trace.steps["process"].is_in(workers["process"].implode())
    steps = trace.steps if is_of_worker.all() else trace.steps.filter(is_of_worker)
    numbers = steps["step"].unique().sort().to_numpy().astype(np.int64)
    ranks = workers["rank"].to_list()
    grid = _Grid(numbers, np.array(ranks, np.int64))
    length_ns = grid.fill(steps, (steps["end_ns"] - steps["start_ns"]).to_numpy())
    is_missing = np.isnan(length_ns) | grid.cut_short(steps, workers)
    cells = grid.cells(phases.pieces.steps)
    phase_names = [n for n in COMPUTE_CATEGORIES if phases.spent[:, CATEGORIES.index(n)].any()]
    if _is_worth_reporting(phases.by_worker(phases.sum_time(CATEGORIES[UNINSTRUMENTED])), phases):
        phase_names.append(CATEGORIES[UNINSTRUMENTED])
    compute_ns = np.empty((len(phase_names), *length_ns.shape))
    for phase_ns, name in zip(compute_ns, phase_names, strict=True):
        phase_ns[:] = grid.sum(cells, phases.sum_time(name))
    compute_ns[:, is_missing] = length_ns[is_missing] = np.nan
    wait_ns = grid.sum(cells, phases.sum_time(*WAIT_CATEGORIES))
    wait_ns[is_missing] = 0.0
    return ComputeTime(
        ranks=tuple(ranks),
        hosts=tuple(workers["host"].fill_null("").to_list()),
        steps=numbers,
        phases=tuple(phase_names),
        own=compute_ns,
        length=length_ns,
        wait=wait_ns,
        settled=_find_settled(compute_ns),
        parted=bool(trace.parted),
        stages=roles.stages,
        server=None if roles.server is None else ranks.index(roles.server),
    )


def _is_worth_reporting(spent_ns: Ints, phases: Phases) -> bool:
    """Return True if any worker spends enough of its time so that a finding could be worth it."""
    total_ns = phases.by_worker(phases.sum_time(*CATEGORIES))
    return bool((spent_ns >= LEAST_LOSS * total_ns)[total_ns > 0].any())


@dataclass(frozen=True, eq=False)
class _Grid:
    """Puts rows of (rank, step, ns) into a [step, rank] matrix."""

    steps: Ints
    ranks: Ints

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.steps), len(self.ranks)

    def cells(self, frame: pl.DataFrame) -> Indices:
        """Return the place of each row in the flat matrix."""
        rows = np.searchsorted(self.steps, frame["step"].to_numpy())
        return rows * len(self.ranks) + np.searchsorted(self.ranks, frame["rank"].to_numpy())

    def sum(self, cells: Indices, values: Ints) -> Floats:
        sums = np.bincount(cells, values, minlength=len(self.steps) * len(self.ranks))
        return np.asarray(sums, np.float64).reshape(self.shape)

    def fill(self, frame: pl.DataFrame, values: Ints) -> Floats:
        matrix = np.full(self.shape, np.nan)
        matrix.reshape(-1)[self.cells(frame)] = values
        return matrix

    def cut_short(self, steps: pl.DataFrame, workers: pl.DataFrame) -> Flags:
        """Find which cells are the last step of a process that was cut short."""
        incomplete = workers.filter(~pl.col("complete")).select("process")
        last_steps = (
            steps.join(incomplete, on="process", how="semi")
            .group_by("rank")
            .agg(pl.col("step").max())
        )
        matrix = np.zeros(self.shape, np.bool_)
        matrix.reshape(-1)[self.cells(last_steps)] = True
        return matrix


def _find_settled(compute_ns: Floats) -> Flags:
    """Find which steps compare: half of the ranks there, after the warm-up, not extraordinary.

    `compute_ns` is [phase, step, rank]. A step is extraordinary if no rank is spared: by the rank that
    takes least for each phase. Where others wait for a stall without a span for it, in another phase,
    that is nothing.
    """
    total_ns = compute_ns.sum(axis=0)
    is_settled = np.count_nonzero(~np.isnan(total_ns), axis=1) * 2 >= max(total_ns.shape[1], 1)
    is_settled[:WARM_UP] = False
    if is_settled.any():
        least_ns = np.fmin.reduce(compute_ns, axis=2).sum(axis=0)
        typical_ns = np.nanmedian(np.fmin.reduce(total_ns, axis=1)[is_settled])
        is_settled &= ~(least_ns > 3 * typical_ns)
    return np.asarray(is_settled)


Workload = dict[str, "Floats"]  # by name, [step, rank]; nan where a step did not tell


@dataclass(frozen=True)
class Explanation:
    """Which amount compute time correlates with best, and what share of its variance that explains."""

    amount: str
    share: float


def find_proportional_delays(times: ComputeTime) -> Flags:
    """Find where a rank's forward and backprop are longer in about one proportion, [step, rank].

    So it is where it has more to do, such as longer sequences. A phase that stalls does not keep that
    proportion, nor does most of what disturbs a machine.
    """
    if not {*COMPUTING} <= {*times.phases}:
        return np.zeros(times.total.shape, np.bool_)
    growth = []
    for name in COMPUTING:
        spent_ns = np.nan_to_num(times.own[times.phases.index(name)], nan=0.0)
        typical_ns = np.maximum(np.median(spent_ns, axis=0), 1.0)
        growth.append(spent_ns / typical_ns - 1)
    smaller, larger = np.minimum(*growth), np.maximum(*growth)
    return is_in_proportion(smaller, larger)


def is_in_proportion(smaller: Floats, larger: Floats) -> Flags:
    """Find where one share by which something grew is about as large as a larger one, above 0."""
    return np.asarray((larger > 0) & (smaller >= MIN_PROPORTION_OF_MORE_WORK * larger))


def measure_workload(phases: Phases, times: ComputeTime) -> Workload:
    """Return the samples and tokens of every step and rank, as far as they were recorded."""
    workload = {}
    column = {rank: index for index, rank in enumerate(times.ranks)}
    for name in AMOUNTS:
        matrix = np.full((len(times.steps), len(times.ranks)), np.nan)
        for rank, (steps, values) in phases.amounts.get(name, {}).items():
            if np.array_equal(steps, times.steps):
                matrix[:, column[rank]] = values
                continue
            is_known = np.isin(steps, times.steps)
            matrix[np.searchsorted(times.steps, steps[is_known]), column[rank]] = values[is_known]
        if not np.isnan(matrix).all():
            workload[name] = matrix
    return workload


def measure_more_work(workload: Workload) -> Floats | None:
    """Return by what share of its usual amount each rank worked through more, [step, rank].

    By tokens, or else by samples; None where neither was recorded of all steps.
    """
    for name in AMOUNTS:
        values = workload.get(name)
        if values is not None and (values > 0).all():
            return np.asarray(values / np.median(values, axis=0) - 1)
    return None


def measure_workload_ratios(
    workload: Workload, ranks: tuple[int, ...], others: Indices, rows: Indices
) -> dict[str, float]:
    """Count how many times the others' amounts some ranks (columns) have, in some steps (rows)."""
    ratios = {}
    for name, values in workload.items():
        selected, peers = values[rows][:, ranks], values[rows][:, others]
        if np.isnan(selected).any() or np.isnan(peers).any() or not peers.size:
            continue
        typical = float(np.median(peers.mean(axis=0)))
        if typical > 0:
            ratios[name] = float(selected.mean()) / typical
    return ratios


def describe_workload(ratios: dict[str, float], *, several: bool) -> list[str]:
    """Return sentences on ranks that have more work than the others, if any."""
    name = max(ratios, key=lambda amount: ratios[amount], default=None)
    if name is None or ratios[name] < 1 + MIN_MORE_WORK_TO_REPORT:
        return []
    subject = "They have" if several else "It has"
    return [f"{subject} {fmt.percent(ratios[name] - 1)} more {name} than the others."]


def explain_by_workload(workload: Workload, times: ComputeTime) -> Explanation | None:
    """Find the amount with which compute time varies over ranks and steps; None where all are equal.

    The share is the squared correlation of both, each relative to its step's median.
    """
    computing = times.own[[name in COMPUTING for name in times.phases]].sum(axis=0)[times.settled]
    explanations = []
    for name, values in workload.items():
        amount = values[times.settled]
        is_complete = ~(np.isnan(amount) | np.isnan(computing)).any(axis=1)
        if np.count_nonzero(is_complete) > 1:
            x, y = _divide_by_median(amount[is_complete]), _divide_by_median(computing[is_complete])
            if x.std() > 0 and y.std() > 0:
                explanations.append(Explanation(name, float(np.corrcoef(x, y)[0, 1]) ** 2))
    return max(explanations, key=lambda one: one.share, default=None)


def _divide_by_median(values: Floats) -> Floats:
    """Measure how far ranks are from their step's median, as a share of it."""
    middle = np.median(values, axis=1, keepdims=True)
    return np.asarray((values / np.where(middle > 0, middle, np.nan) - 1)[middle[:, 0] > 0].ravel())
