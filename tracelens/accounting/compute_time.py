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
        """These times as if all stages had equally much to do, so that all ranks can be compared.

        In each phase and step the typical rank of every stage is moved to the mean of all stages. A
        server takes at least what those take whom it serves.
        """
        if self.server is not None:
            compute_ns = self.own.copy()
            for phase_ns in compute_ns:
                typical_ns = self._find_typical_ns(np.delete(phase_ns, self.server, axis=1))
                phase_ns[:, self.server] = np.maximum(phase_ns[:, self.server], typical_ns)
            return replace(self, own=compute_ns)
        if self.stages is None:
            return self
        compute_ns = self.own.copy()
        for phase_ns in compute_ns:
            typical_of_stages = [
                self._find_typical_ns(phase_ns[:, members]) for members in self.stages.members
            ]
            mean_ns = medians(np.stack(typical_of_stages)[:, self.settled_rows], axis=1).mean()
            for members, typical_ns in zip(self.stages.members, typical_of_stages, strict=True):
                phase_ns[:, members] += mean_ns - typical_ns[:, None]
        return replace(self, own=compute_ns, stages=None)

    def _find_typical_ns(self, peers: Floats) -> Floats:
        """Return the typical time of the ranks of a stage, [step], ns; `peers` is [step, rank].

        It is the median; of two ranks the faster one; of one rank its own median step.
        """
        if peers.shape[1] > 2:
            return medians(peers, axis=1)
        if peers.shape[1] == 2:
            return np.asarray(np.fmin(*peers.T))
        return np.full(len(peers), medians(peers[self.settled_rows, 0], axis=0))

    def peers_of(self, columns: tuple[int, ...]) -> Indices:
        """Return the columns that `columns` are compared with: ranks of the same stages, no server."""
        is_peer = np.ones(len(self.ranks), np.bool_)
        if self.stages is not None:
            is_peer = np.isin(self.stages.stage, self.stages.stage[list(columns)])
        is_peer[[*columns, *([] if self.server is None else [self.server])]] = False
        return np.flatnonzero(is_peer)

    @cached_property
    def steps_done(self) -> Ints:
        """How many steps each rank has made."""
        return np.asarray(np.count_nonzero(~np.isnan(self.total), axis=0), np.int64)

    def work_left_to_others(self, columns: tuple[int, ...]) -> bool:
        """Return True if ranks (columns) that a server serves made clearly fewer steps than their peers.

        Then all take work at their own pace, and none waits for another.
        """
        peers = self.peers_of(columns)
        if self.server is None or not len(peers):
            return False
        step_count = float(self.steps_done[list(columns)].max())
        return step_count * MIN_RATIO_OF_STEPS_IF_WORK_LEFT <= float(
            np.median(self.steps_done[peers])
        )

    def compared_with(self, columns: tuple[int, ...]) -> Indices:
        """Return the columns of the peers; where the stages of `columns` have no others, all others."""
        peers = self.peers_of(columns)
        return peers if len(peers) else np.delete(np.arange(len(self.ranks)), columns)

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
    step_numbers = steps["step"].unique().sort().to_numpy().astype(np.int64)
    ranks = workers["rank"].to_list()
    grid = _Grid(step_numbers, np.array(ranks, np.int64))
    length_ns = grid.fill(steps, (steps["end_ns"] - steps["start_ns"]).to_numpy())
    is_missing = np.isnan(length_ns) | grid.cut_short(steps, workers)
    cell_of_window = grid.cells(phases.pieces.steps)
    phase_names = [
        name for name in COMPUTE_CATEGORIES if phases.spent[:, CATEGORIES.index(name)].any()
    ]
    if _is_worth_reporting(phases.by_worker(phases.sum_time(CATEGORIES[UNINSTRUMENTED])), phases):
        phase_names.append(CATEGORIES[UNINSTRUMENTED])
    compute_ns = np.empty((len(phase_names), *length_ns.shape))
    for phase_ns, name in zip(compute_ns, phase_names, strict=True):
        phase_ns[:] = grid.sum(cell_of_window, phases.sum_time(name))
    compute_ns[:, is_missing] = length_ns[is_missing] = np.nan
    wait_ns = grid.sum(cell_of_window, phases.sum_time(*WAIT_CATEGORIES))
    wait_ns[is_missing] = 0.0
    return ComputeTime(
        ranks=tuple(ranks),
        hosts=tuple(workers["host"].fill_null("").to_list()),
        steps=step_numbers,
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
    """Puts values of rows with `step` and `rank` into a [step, rank] matrix."""

    steps: Ints
    ranks: Ints

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.steps), len(self.ranks)

    def cells(self, rows: pl.DataFrame) -> Indices:
        """Return the index of each row in the flat matrix."""
        step_index = np.searchsorted(self.steps, rows["step"].to_numpy())
        return step_index * len(self.ranks) + np.searchsorted(self.ranks, rows["rank"].to_numpy())

    def sum(self, cells: Indices, values: Ints) -> Floats:
        sums = np.bincount(cells, values, minlength=len(self.steps) * len(self.ranks))
        return np.asarray(sums, np.float64).reshape(self.shape)

    def fill(self, rows: pl.DataFrame, values: Ints) -> Floats:
        matrix = np.full(self.shape, np.nan)
        matrix.reshape(-1)[self.cells(rows)] = values
        return matrix

    def cut_short(self, steps: pl.DataFrame, workers: pl.DataFrame) -> Flags:
        """Find which cells, [step, rank], are the last step of a process that was cut short."""
        incomplete = workers.filter(~pl.col("complete")).select("process")
        last_steps = (
            steps.join(incomplete, on="process", how="semi")
            .group_by("rank")
            .agg(pl.col("step").max())
        )
        is_cut_short = np.zeros(self.shape, np.bool_)
        is_cut_short.reshape(-1)[self.cells(last_steps)] = True
        return is_cut_short


def _find_settled(compute_ns: Floats) -> Flags:
    """Find the steps that statistics may use, [step], from [phase, step, rank].

    These have half of the ranks, come after the warm-up, and are not extraordinary: in such a step even
    the rank that takes least, for each phase, takes three times what it usually does.
    """
    total_ns = compute_ns.sum(axis=0)
    is_settled = np.count_nonzero(~np.isnan(total_ns), axis=1) * 2 >= max(total_ns.shape[1], 1)
    is_settled[:WARM_UP] = False
    if is_settled.any():
        least_compute_ns = np.fmin.reduce(compute_ns, axis=2).sum(axis=0)
        usual_least_ns = np.nanmedian(np.fmin.reduce(total_ns, axis=1)[is_settled])
        is_settled &= ~(least_compute_ns > 3 * usual_least_ns)
    return np.asarray(is_settled)


Workload = dict[str, "Floats"]  # by name, [step, rank]; nan where a step did not tell


@dataclass(frozen=True)
class Explanation:
    """Which amount compute time correlates with best, and what share of its variance that explains."""

    amount: str
    share: float


def find_proportional_delays(times: ComputeTime) -> Flags:
    """Find where a rank's forward and backprop are longer in about one proportion, [step, rank].

    That tells more work, such as longer sequences, from a stall, which lengthens one phase.
    """
    if not {*COMPUTING} <= {*times.phases}:
        return np.zeros(times.total.shape, np.bool_)
    growth_shares = []
    for name in COMPUTING:
        compute_ns = np.nan_to_num(times.own[times.phases.index(name)], nan=0.0)
        typical_ns = np.maximum(np.median(compute_ns, axis=0), 1.0)
        growth_shares.append(compute_ns / typical_ns - 1)
    smaller_share, larger_share = np.minimum(*growth_shares), np.maximum(*growth_shares)
    return is_in_proportion(smaller_share, larger_share)


def is_in_proportion(smaller: Floats, larger: Floats) -> Flags:
    """Find where two phases grew, and the smaller growth (a share) is about as large as the larger."""
    return np.asarray((larger > 0) & (smaller >= MIN_PROPORTION_OF_MORE_WORK * larger))


def measure_workload(phases: Phases, times: ComputeTime) -> Workload:
    """Return the samples and the tokens of every step and rank, [step, rank], if recorded."""
    workload = {}
    column_of = {rank: index for index, rank in enumerate(times.ranks)}
    for name in AMOUNTS:
        amounts = np.full((len(times.steps), len(times.ranks)), np.nan)
        for rank, (steps, values) in phases.amounts.get(name, {}).items():
            if np.array_equal(steps, times.steps):
                amounts[:, column_of[rank]] = values
                continue
            is_known = np.isin(steps, times.steps)
            amounts[np.searchsorted(times.steps, steps[is_known]), column_of[rank]] = values[
                is_known
            ]
        if not np.isnan(amounts).all():
            workload[name] = amounts
    return workload


def measure_more_work(workload: Workload) -> Floats | None:
    """Return by what share (0 = none) a rank had more work than in its median step, [step, rank].

    By tokens, or else by samples; None where neither was recorded of all steps.
    """
    for name in AMOUNTS:
        amounts = workload.get(name)
        if amounts is not None and (amounts > 0).all():
            return np.asarray(amounts / np.median(amounts, axis=0) - 1)
    return None


def measure_workload_ratios(
    workload: Workload, columns: tuple[int, ...], peer_columns: Indices, rows: Indices
) -> dict[str, float]:
    """Return the amount of work of some ranks (columns) as a ratio of their peers', by its name.

    `workload` has each amount, [step, rank]; only the steps of `rows` count.
    """
    ratios = {}
    for name, all_amounts in workload.items():
        amounts, peer_amounts = all_amounts[rows][:, columns], all_amounts[rows][:, peer_columns]
        if np.isnan(amounts).any() or np.isnan(peer_amounts).any() or not peer_amounts.size:
            continue
        typical_amount = float(np.median(peer_amounts.mean(axis=0)))
        if typical_amount > 0:
            ratios[name] = float(amounts.mean()) / typical_amount
    return ratios


def describe_workload(ratios: dict[str, float], *, several: bool) -> list[str]:
    """Return sentences on ranks that have more work than the others, if any."""
    name = max(ratios, key=lambda amount: ratios[amount], default=None)
    if name is None or ratios[name] < 1 + MIN_MORE_WORK_TO_REPORT:
        return []
    subject = "They have" if several else "It has"
    return [f"{subject} {fmt.percent(ratios[name] - 1)} more {name} than the others."]


def explain_by_workload(workload: Workload, times: ComputeTime) -> Explanation | None:
    """Find the amount that explains compute time best; None where all amounts or times are equal.

    Its share is the squared correlation of both over ranks and steps, relative to each step's median.
    """
    compute_ns = times.own[[name in COMPUTING for name in times.phases]].sum(axis=0)[times.settled]
    explanations = []
    for name, amounts in workload.items():
        settled_amounts = amounts[times.settled]
        is_complete = ~(np.isnan(settled_amounts) | np.isnan(compute_ns)).any(axis=1)
        if np.count_nonzero(is_complete) > 1:
            relative_amounts = _divide_by_median(settled_amounts[is_complete])
            relative_times = _divide_by_median(compute_ns[is_complete])
            if relative_amounts.std() > 0 and relative_times.std() > 0:
                correlation = float(np.corrcoef(relative_amounts, relative_times)[0, 1])
                explanations.append(Explanation(name, correlation**2))
    return max(explanations, key=lambda explanation: explanation.share, default=None)


def _divide_by_median(values: Floats) -> Floats:
    """Return by what share each value differs from its step's median, flat; `values` is [step, rank]."""
    medians = np.median(values, axis=1)
    is_positive = medians > 0
    return np.ravel(values[is_positive] / medians[is_positive, None] - 1)
