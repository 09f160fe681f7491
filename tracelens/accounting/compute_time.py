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
from tracelens.model.calls import to_slice
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
    """Matrices in nanoseconds, [step, rank], `compute_ns` [phase, step, rank]; nan: a rank lacks a step.

    `is_comparable_row`, [step], says which steps statistics may use: not those of the warm-up, nor those
    extraordinarily long on every rank in the same phases. `host_of_column` is each rank's host.
    `leaves_out_ranks`: other ranks were left out as asked, so waits cannot be assigned to ranks.
    `stages` separates ranks that play different parts; `server_column` (a rank) is no peer of those
    whom it serves.
    """

    ranks: tuple[int, ...]
    host_of_column: tuple[str, ...]
    step_numbers: Ints
    phase_names: tuple[str, ...]
    compute_ns: Floats
    step_length_ns: Floats
    wait_ns: Floats
    is_comparable_row: Flags
    leaves_out_ranks: bool = False
    stages: Stages | None = None
    server_column: int | None = None

    @cached_property
    def total_compute_ns(self) -> Floats:
        """Compute time of all phases, [step, rank]."""
        return np.asarray(self.compute_ns.sum(axis=0))

    @cached_property
    def compute_ns_between_meetings(self) -> Floats:
        """Compute time from the point where ranks meet in a step to that in the next, [step, rank]."""
        follows_meeting = np.isin(self.phase_names, AFTER_MEETING)
        before_ns = self.compute_ns[~follows_meeting].sum(axis=0)
        next_ns = np.concatenate([before_ns[1:], np.zeros_like(before_ns[:1])])
        return np.asarray(self.compute_ns[follows_meeting].sum(axis=0) + next_ns)

    @cached_property
    def with_equal_stages(self) -> ComputeTime:
        """These times as if all stages had equally much to do, so that all ranks can be compared.

        In each phase and step the typical rank of every stage is moved to the mean of all stages. A
        server takes at least what those take whom it serves.
        """
        server = self.server_column
        if server is not None:
            compute_ns = self.compute_ns.copy()
            for phase_ns in compute_ns:  # [step, rank]
                typical_ns = self._find_typical_ns(np.delete(phase_ns, server, axis=1))
                phase_ns[:, server] = np.maximum(phase_ns[:, server], typical_ns)
            return replace(self, compute_ns=compute_ns)
        if self.stages is None:
            return self
        compute_ns, columns_by_stage = self.compute_ns.copy(), self.stages.columns_by_stage
        for phase_ns in compute_ns:
            stages_ns = [self._find_typical_ns(phase_ns[:, stage]) for stage in columns_by_stage]
            mean_ns = medians(np.stack(stages_ns)[:, self.comparable_rows], axis=1).mean()
            for columns, stage_ns in zip(columns_by_stage, stages_ns, strict=True):
                phase_ns[:, columns] += mean_ns - stage_ns[:, None]
        return replace(self, compute_ns=compute_ns, stages=None)

    def _find_typical_ns(self, stage_ns: Floats) -> Floats:
        """Return the median of ranks, [step, rank]; of two the faster one, of one its median step."""
        if stage_ns.shape[1] > 2:
            return medians(stage_ns, axis=1)
        if stage_ns.shape[1] == 2:
            return np.asarray(np.fmin(*stage_ns.T))
        return np.full(len(stage_ns), medians(stage_ns[self.comparable_rows, 0], axis=0))

    def find_peer_columns(self, rank_columns: tuple[int, ...]) -> Indices:
        """Return the columns of the peers of `rank_columns`: those of the same stages, no server.

        Columns are those of a matrix, [step, rank].
        """
        is_peer = np.ones(len(self.ranks), np.bool_)
        if self.stages is not None:
            stage_of_column = self.stages.stage_of_column
            is_peer = np.isin(stage_of_column, stage_of_column[list(rank_columns)])
        is_peer[[*rank_columns, *([] if self.server_column is None else [self.server_column])]] = (
            False
        )
        return np.flatnonzero(is_peer)

    @cached_property
    def step_counts(self) -> Ints:
        """How many steps each rank has made, [rank]."""
        return np.asarray(np.count_nonzero(~np.isnan(self.total_compute_ns), axis=0), np.int64)

    def is_work_left_to_others(self, rank_columns: tuple[int, ...]) -> bool:
        """Return True if ranks (columns) that a server serves made clearly fewer steps than their peers.

        Then all take work at their own pace, and none waits for another.
        """
        peers = self.find_peer_columns(rank_columns)
        if self.server_column is None or not len(peers):
            return False
        step_count = float(self.step_counts[list(rank_columns)].max())
        return step_count * MIN_RATIO_OF_STEPS_IF_WORK_LEFT <= float(
            np.median(self.step_counts[peers])
        )

    def find_compared_columns(self, rank_columns: tuple[int, ...]) -> Indices:
        """Return the columns of the peers; where these stages have no others, all others."""
        peers = self.find_peer_columns(rank_columns)
        return peers if len(peers) else np.delete(np.arange(len(self.ranks)), rank_columns)

    @cached_property
    def comparable_rows(self) -> slice | Indices:
        """The rows that statistics may use: of most runs a stretch, so that to take them is no copy."""
        return to_slice(np.flatnonzero(self.is_comparable_row))

    @cached_property
    def typical_step_ns(self) -> float:
        """The length of a typical step, at least 1: steps of a damaged trace may take no time."""
        rows = self.comparable_rows if self.is_comparable_row.any() else slice(None)
        return max(1.0, float(medians(self.step_length_ns[rows].ravel(), 0)))

    @cached_property
    def typical_compute_ns(self) -> float:
        """The compute time of a typical rank in a typical step."""
        return float(medians(self.total_compute_ns[self.comparable_rows].ravel(), 0))


def measure_compute_time(trace: Trace, phases: Phases, roles: Roles | None = None) -> ComputeTime:
    """Build the matrices of all main workers; phases that never occur are left out."""
    roles = roles or find_roles(trace)
    workers = trace.workers
    is_of_worker = trace.steps["process"].is_in(workers["process"].implode())
    steps = trace.steps if is_of_worker.all() else trace.steps.filter(is_of_worker)
    step_numbers = steps["step"].unique().sort().to_numpy().astype(np.int64)
    ranks = workers["rank"].to_list()
    grid = _Grid(step_numbers, np.array(ranks, np.int64))
    length_ns = grid.fill_matrix(steps, (steps["end_ns"] - steps["start_ns"]).to_numpy())
    is_missing = np.isnan(length_ns) | grid.find_cut_short(steps, workers)
    cell_of_window = grid.find_cells(phases.pieces.step_windows)
    phase_names = [name for name in COMPUTE_CATEGORIES if phases.sum_ns_by_window(name).any()]
    uncovered_ns = phases.sum_by_worker(phases.sum_ns_by_window(CATEGORIES[UNINSTRUMENTED]))
    if _is_worth_reporting(uncovered_ns, phases):
        phase_names.append(CATEGORIES[UNINSTRUMENTED])
    compute_ns = np.empty((len(phase_names), *length_ns.shape))
    for phase_ns, name in zip(compute_ns, phase_names, strict=True):
        phase_ns[:] = grid.sum_matrix(cell_of_window, phases.sum_ns_by_window(name))
    compute_ns[:, is_missing] = length_ns[is_missing] = np.nan
    wait_ns = grid.sum_matrix(cell_of_window, phases.sum_ns_by_window(*WAIT_CATEGORIES))
    wait_ns[is_missing] = 0.0
    return ComputeTime(
        ranks=tuple(ranks),
        host_of_column=tuple(workers["host"].fill_null("").to_list()),
        step_numbers=step_numbers,
        phase_names=tuple(phase_names),
        compute_ns=compute_ns,
        step_length_ns=length_ns,
        wait_ns=wait_ns,
        is_comparable_row=_find_comparable_rows(compute_ns),
        leaves_out_ranks=bool(trace.partial_communicators),
        stages=roles.stages,
        server_column=None if roles.server_rank is None else ranks.index(roles.server_rank),
    )


def _is_worth_reporting(spent_ns: Ints, phases: Phases) -> bool:
    """Return True if `spent_ns`, [worker], is enough of any worker's time to be worth a finding."""
    total_ns = phases.sum_by_worker(phases.sum_ns_by_window(*CATEGORIES))
    return bool((spent_ns >= LEAST_LOSS * total_ns)[total_ns > 0].any())


@dataclass(frozen=True, eq=False)
class _Grid:
    """Puts values of rows with `step` and `rank` into a [step, rank] matrix."""

    step_numbers: Ints
    ranks: Ints  # ascending, as `steps`

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.step_numbers), len(self.ranks)

    def find_cells(self, rows: pl.DataFrame) -> Indices:
        """Return the index of each row in the flat matrix."""
        step_index = np.searchsorted(self.step_numbers, rows["step"].to_numpy())
        return step_index * len(self.ranks) + np.searchsorted(self.ranks, rows["rank"].to_numpy())

    def sum_matrix(self, cells: Indices, values: Ints) -> Floats:
        sums = np.bincount(cells, values, minlength=len(self.step_numbers) * len(self.ranks))
        return np.asarray(sums, np.float64).reshape(self.shape)

    def fill_matrix(self, rows: pl.DataFrame, values: Ints) -> Floats:
        """Return a matrix of the values, each of one of `rows`; nan elsewhere."""
        matrix = np.full(self.shape, np.nan)
        matrix.reshape(-1)[self.find_cells(rows)] = values
        return matrix

    def find_cut_short(self, steps: pl.DataFrame, workers: pl.DataFrame) -> Flags:
        """Find the cells, [step, rank], that are the last step of a process that was cut short.

        `steps` and `workers` are tables of the trace, with one row per step of a worker and per worker.
        """
        incomplete = workers.filter(~pl.col("complete")).select("process")
        last_steps = (
            steps.join(incomplete, on="process", how="semi")
            .group_by("rank")
            .agg(pl.col("step").max())
        )
        is_cut_short = np.zeros(self.shape, np.bool_)
        is_cut_short.reshape(-1)[self.find_cells(last_steps)] = True
        return is_cut_short


def _find_comparable_rows(compute_ns: Floats) -> Flags:
    """Find the steps that statistics may use, [step], from [phase, step, rank].

    These have half of the ranks, come after the warm-up, and are not extraordinary: in such a step even
    the rank that takes least, for each phase, takes three times what it usually does.
    """
    total_ns = compute_ns.sum(axis=0)
    is_comparable = np.count_nonzero(~np.isnan(total_ns), axis=1) * 2 >= max(total_ns.shape[1], 1)
    is_comparable[:WARM_UP] = False
    if is_comparable.any():
        least_compute_ns = np.fmin.reduce(compute_ns, axis=2).sum(axis=0)
        usual_least_ns = medians(np.fmin.reduce(total_ns, axis=1)[is_comparable], 0)
        is_comparable &= ~(least_compute_ns > 3 * usual_least_ns)
    return np.asarray(is_comparable)


Workload = dict[str, "Floats"]  # by name, [step, rank]; nan where a step did not tell


@dataclass(frozen=True)
class Explanation:
    """Which amount compute time correlates with best, and what share of its variance that explains."""

    amount_name: str
    variance_share: float


def find_proportional_delays(times: ComputeTime) -> Flags:
    """Find where a rank's forward and backprop are longer in about one proportion, [step, rank].

    That tells more work, such as longer sequences, from a stall, which lengthens one phase.
    """
    if not {*COMPUTING} <= {*times.phase_names}:
        return np.zeros(times.total_compute_ns.shape, np.bool_)
    growth_shares = []
    for name in COMPUTING:
        compute_ns = np.nan_to_num(times.compute_ns[times.phase_names.index(name)], nan=0.0)
        typical_ns = np.maximum(np.median(compute_ns, axis=0), 1.0)
        growth_shares.append(compute_ns / typical_ns - 1)
    smaller_share, larger_share = np.minimum(*growth_shares), np.maximum(*growth_shares)
    return is_in_proportion(smaller_share, larger_share)


def is_in_proportion(smaller: Floats, larger: Floats) -> Flags:
    """Find where two phases grew, and the smaller growth (a share) is about as large as the larger."""
    return np.asarray((larger > 0) & (smaller >= MIN_PROPORTION_OF_MORE_WORK * larger))


def measure_workload(phases: Phases, times: ComputeTime) -> Workload:
    """Return the samples and the tokens of every step and rank, [step, rank], by name, if recorded."""
    workload = {}
    column_by_rank = {rank: column for column, rank in enumerate(times.ranks)}
    for name in AMOUNTS:
        amounts = np.full((len(times.step_numbers), len(times.ranks)), np.nan)
        for rank, (steps, values) in phases.amounts_by_name.get(name, {}).items():
            is_known = np.isin(steps, times.step_numbers)
            rows = np.searchsorted(times.step_numbers, steps[is_known])
            amounts[rows, column_by_rank[rank]] = values[is_known]
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
    workload: Workload, rank_columns: tuple[int, ...], peer_columns: Indices, rows: Indices
) -> dict[str, float]:
    """Return the mean amount of work of some ranks (columns) as a ratio of a typical peer's, by name.

    `workload` has each amount, [step, rank]; only the steps of `rows` count. What is not known of all
    these ranks and peers is left out.
    """
    ratios = {}
    for name, all_amounts in workload.items():
        amounts, peer_amounts = (
            all_amounts[rows][:, rank_columns],
            all_amounts[rows][:, peer_columns],
        )
        if np.isnan(amounts).any() or np.isnan(peer_amounts).any() or not peer_amounts.size:
            continue
        typical_amount = float(np.median(peer_amounts.mean(axis=0)))
        if typical_amount > 0:
            ratios[name] = float(amounts.mean()) / typical_amount
    return ratios


def describe_workload(ratios: dict[str, float], *, several: bool) -> list[str]:
    """Return a sentence on ranks that have more work than the others, if they clearly have.

    `ratios` says how many times the peers' amount it is, by name; `several`: it is about several ranks.
    """
    name = max(ratios, key=lambda amount: ratios[amount], default=None)
    if name is None or ratios[name] < 1 + MIN_MORE_WORK_TO_REPORT:
        return []
    subject = "They have" if several else "It has"
    return [f"{subject} {fmt.percent(ratios[name] - 1)} more {name} than the others."]


def explain_by_workload(workload: Workload, times: ComputeTime) -> Explanation | None:
    """Find the amount that explains compute time best; None where all amounts or times are equal.

    Its share is the squared correlation of both over ranks and steps, relative to each step's median.
    """
    is_computing = [name in COMPUTING for name in times.phase_names]
    compute_ns = times.compute_ns[is_computing].sum(axis=0)[times.is_comparable_row]  # [step, rank]
    explanations = []
    for name, amounts in workload.items():
        comparable_amounts = amounts[times.is_comparable_row]
        is_complete = ~(np.isnan(comparable_amounts) | np.isnan(compute_ns)).any(axis=1)
        if np.count_nonzero(is_complete) > 1:
            relative_amounts = _divide_by_median(comparable_amounts[is_complete])
            relative_times = _divide_by_median(compute_ns[is_complete])
            if relative_amounts.std() > 0 and relative_times.std() > 0:
                correlation = float(np.corrcoef(relative_amounts, relative_times)[0, 1])
                explanations.append(Explanation(amount_name=name, variance_share=correlation**2))
    return max(explanations, key=lambda explanation: explanation.variance_share, default=None)


def _divide_by_median(values: Floats) -> Floats:
    """Return by what share each value differs from its step's median, flat; `values` is [step, rank]."""
    medians = np.median(values, axis=1)
    is_positive = medians > 0
    return np.ravel(values[is_positive] / medians[is_positive, None] - 1)
