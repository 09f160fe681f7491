"""Detection: which ranks are late by their own work, in which phases and steps, in which pattern.

Evidence (`evidence.py`) says where to look; each delay is followed from there through all steps
(`stats/changepoint.py`), the greatest first. A migrating delay stands out on no rank, so it is searched
first (docs/analyses/stragglers.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.analyses.stragglers.evidence import find_evidence
from tracelens.caching import cached_property
from tracelens.stats import window_scan
from tracelens.stats.changepoint import Course, find_best_runs, fit_courses
from tracelens.stats.robust import block_edges, block_medians, measure_deviation, medians
from tracelens.stats.tails import student_tail

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.analyses.stragglers.evidence import Evidence
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.findings import Pattern

# share of the fewer steps: evidence that has as many in common is of one delay [calibrate]
MIN_OVERLAP_OF_ONE_DELAY: Final = 0.5
# share of a delay: an episode that leaves less of it explains the evidence [calibrate]
MIN_SHARE_OF_DELAY_LEFT: Final = 0.5
# share of the delay in all phases: if one phase has as much, its own steps are followed [calibrate]
MIN_SHARE_OF_DELAY_IN_ONE_PHASE: Final = 0.75
# share of a delay: if phases that are clearly longer have less, the phase that grew
# most is named alone [calibrate]
MIN_SHARE_OF_DELAY_IN_CLEAR_PHASES: Final = 0.5
MIN_STEPS_OF_LASTING_DELAY: Final = 4  # steps: a delay of fewer does not last [calibrate]
# share of the fewer steps: evidence that has as many in common with an episode
# must be as great [calibrate]
MIN_OVERLAP_WITH_EPISODE: Final = 0.5
# share of gaps between stalls: a period is reported if as many keep it [calibrate]
MIN_SHARE_OF_GAPS_WITH_PERIOD: Final = 0.75
# share of steps: a rank that exceeds half of its lower level in as many is slower throughout [chosen]
MIN_SHARE_OF_STEPS_AT_LOWER_LEVEL: Final = 0.9
# share of steps: fewer without a delay do not show what is usual [calibrate]
MIN_SHARE_OF_STEPS_FOR_BASELINE: Final = 0.25
# standard errors: a phase that is longer by less is not clearly longer [calibrate]
MIN_Z_SCORE_OF_LONGER_PHASE: Final = 3
# of a step: standard deviation of equal ranks if no steps without the delay show it [calibrate]
SPREAD_OF_RANKS_WITHOUT_BASELINE: Final = 0.003
# ranks: a delay that migrates is not searched for among fewer [calibrate]
MIN_RANKS_FOR_MIGRATING_TEST: Final = 3
# steps: a delay that migrates stays at each rank for as many in a row [calibrate; one decision in
# find_migrating, _divide_into_stretches]
MIN_STEPS_OF_STRETCH: Final = 5
# of a step: stretches of equal ranks differ by this standard deviation or more [calibrate]
MIN_SPREAD_OF_STRETCHES: Final = 0.003
# of a step: a smaller delay that migrates is not searched for [calibrate]
MIN_MIGRATING_DELAY: Final = 0.05
# standard deviations: a stretch that is less far out does not set the level of a delay [calibrate]
MIN_Z_SCORE_OF_STRETCH: Final = 3
# rounds: the level of a delay that migrates, and its stretches, are fitted as often [policy]
ROUNDS_OF_MIGRATING_LEVEL: Final = 4
# degrees of freedom: the spread of stretches has as many [calibrate]
FREEDOM_OF_STRETCHES: Final = 60
# probability: a delay that migrates is not reported if chance is likelier [calibrate]
MAX_P_VALUE_OF_MIGRATING_DELAY: Final = 0.003
MIN_RANKS_VISITED: Final = 3  # ranks: a delay that visits fewer does not migrate [calibrate]
# share of steps: a delay migrates if some rank is late in as many [calibrate]
MIN_SHARE_OF_STEPS_WITH_LATE_RANK: Final = 0.5
# share of ranks' late steps: if one rank has more, it is the straggler [calibrate]
MAX_SHARE_OF_STRETCHES_OF_ONE_RANK: Final = 0.5
# share of steps with a late rank: a delay migrates if only one is late in as many [calibrate]
MIN_SHARE_OF_LATE_STEPS_OF_ONE_RANK: Final = 0.5


@dataclass(frozen=True, eq=False)
class Episode:
    """Ranks (columns of `ComputeTime`) that are late in a phase in the same steps.

    `delay_ns` is [step, rank], 0 in time; `more_phases` of the same ranks hold a part of it.
    `relative_error` is its standard error as a share of it, `period_steps` the steps between stalls.
    """

    rank_columns: tuple[int, ...]
    phase: str
    delay_ns: Floats
    pattern: Pattern
    p_value: float
    relative_error: float = 0.0
    period_steps: int | None = None
    more_phases: tuple[str, ...] = ()

    @property
    def phase_names(self) -> tuple[str, ...]:
        """All phases that hold the delay, the one with most of it first."""
        return (self.phase, *self.more_phases)

    @cached_property
    def late_step_rows(self) -> Indices:
        """Rows (steps) in which a rank is late, ascending."""
        return np.flatnonzero(self.delay_ns.any(axis=1))

    @cached_property
    def mean_delay_ns(self) -> float:
        """Delay of the latest rank of each late step, mean."""
        return float(self.delay_ns[self.late_step_rows].max(axis=1).mean())


def find_episodes(times: ComputeTime) -> list[Episode]:
    """Find every delay of a single rank, and a delay that migrates."""
    if not times.phase_names or not times.is_comparable_row.any():
        return []
    # Of each phase, and last of all of them: [step, rank] as shares of a step.
    residuals = [_measure_residuals(times, phase_ns) for phase_ns in times.compute_ns]
    if len(times.phase_names) > 1:
        residuals.append(_measure_residuals(times, times.total_compute_ns))
    migrating = find_migrating(times, residuals[-1], residuals[: len(times.phase_names)])
    if migrating:
        for residual in residuals:
            residual[migrating.delay_ns > 0] = 0.0
    comparable_residuals = [residual[times.comparable_rows] for residual in residuals]
    evidence = find_evidence(comparable_residuals, np.flatnonzero(times.is_comparable_row))
    episodes = [migrating] if migrating else []
    for column in sorted({item.rank_column for item in evidence}):
        rank_evidence = [item for item in evidence if item.rank_column == column]
        unexplained = np.stack([residual[:, column] for residual in residuals])
        episodes += _RankDelays(times, unexplained_shares=unexplained, rank_column=column).explain(
            rank_evidence
        )
    return episodes


def _measure_residuals(times: ComputeTime, spent_ns: Floats) -> Floats:
    """Measure each rank's time beyond its peers in every step, [step, rank] as shares of a step.

    `spent_ns` is [step, rank]. Of two ranks each is the other's peer.
    """
    if len(times.ranks) > 2:
        return window_scan.measure_peer_residuals(spent_ns, times.typical_step_ns)
    difference = np.nan_to_num(spent_ns[:, 1] - spent_ns[:, 0], nan=0.0) / times.typical_step_ns
    return np.stack([-difference, difference], axis=1)


@dataclass(eq=False)
class _RankDelays:
    """Delays of a rank (column) that no episode explains yet: shares of a step, [series, step].

    The series are the phases and, last, all of them together.
    """

    times: ComputeTime
    unexplained_shares: Floats
    rank_column: int

    @cached_property
    def comparable_rows(self) -> Indices:
        """Rows of the steps that are compared; evidence is of indices of these."""
        return np.flatnonzero(self.times.is_comparable_row)

    def explain(self, evidence: list[Evidence]) -> list[Episode]:
        """Follow the delays that there is evidence for, the greatest first; return their episodes."""
        residuals_before = self.unexplained_shares[:, self.comparable_rows].copy()
        episodes = []
        while evidence:
            greatest = max(evidence, key=self._measure_explained_squares)
            of_one_delay = [
                item
                for item in evidence
                if _measure_overlap(greatest.comparable_indices, item.comparable_indices)
                >= MIN_OVERLAP_OF_ONE_DELAY
            ]
            episode_and_level = self._follow(of_one_delay)
            evidence = [item for item in evidence if item is not greatest]
            if episode_and_level is not None:
                episode, level = episode_and_level
                episodes.append(episode)
                evidence = [
                    item
                    for item in evidence
                    if self._is_unexplained(item, residuals_before, episode, level)
                ]
        return self._add_lower_level(episodes)

    def _add_lower_level(self, episodes: list[Episode]) -> list[Episode]:
        """Add to the longest delay what the rank is slower by in all other steps as well.

        A delay is measured from the rank's own lower level, which may be clearly above its peers'.
        """
        lasting_episodes = [episode for episode in episodes if episode.pattern != "sparse"]
        if not lasting_episodes:
            return episodes
        longest = max(lasting_episodes, key=lambda episode: len(episode.late_step_rows))
        phase_rows = [self.times.phase_names.index(name) for name in longest.phase_names]
        # As a share of a step, [comparable step].
        residual = self.unexplained_shares[phase_rows].sum(axis=0)[self.comparable_rows]
        level = float(np.median(residual))
        is_slower = level >= window_scan.choose_min_effect(len(self.times.ranks))
        if not is_slower or np.mean(residual > level / 2) < MIN_SHARE_OF_STEPS_AT_LOWER_LEVEL:
            return episodes
        delay_ns = longest.delay_ns.copy()
        delay_ns[:, self.rank_column] += level * self.times.typical_step_ns
        persistent = replace(longest, delay_ns=delay_ns, pattern="persistent")
        return [persistent if episode is longest else episode for episode in episodes]

    def _measure_explained_squares(self, item: Evidence) -> float:
        """Return the part of the sum of squares that a delay explains."""
        residual = self.unexplained_shares[item.series_index, self.comparable_rows]
        return float((residual**2).sum()) - _find_best_course(residual, [item]).cost

    def _is_unexplained(
        self, item: Evidence, residuals_before: Floats, episode: Episode, level: float
    ) -> bool:
        """Return True if an episode leaves a good part of an item of evidence.

        In the steps of the episode it must also be as great as the episode's `level`, a share of a step,
        as are the residuals before all episodes, [series, comparable step].
        """
        median_before = np.median(residuals_before[item.series_index, item.comparable_indices])
        item_rows = self.comparable_rows[item.comparable_indices]
        median_left = np.median(self.unexplained_shares[item.series_index, item_rows])
        overlap = _measure_overlap(item_rows, episode.late_step_rows)
        least_level = level if overlap >= MIN_OVERLAP_WITH_EPISODE else 0.0
        return bool(median_left >= max(MIN_SHARE_OF_DELAY_LEFT * median_before, least_level))

    def _follow(self, evidence: list[Evidence]) -> tuple[Episode, float] | None:
        """Follow a delay through all steps, in its phases, and take it away from what is unexplained.

        Return its episode and level (a share of a step); None if it is no delay as in its evidence.
        """
        residuals = self.unexplained_shares[:, self.comparable_rows]  # [series, comparable step]
        phase_count = len(self.times.phase_names)
        phase_residuals = residuals[:phase_count]
        certain_phases = sorted(
            {item.series_index for item in evidence if item.series_index < phase_count}
        )
        course = _find_best_course(residuals[-1], evidence)
        if len(certain_phases) == 1:
            phase_course = _find_best_course(residuals[certain_phases[0]], evidence)
            total_effect, phase_effect = course.delays.sum(), phase_course.delays.sum()
            if phase_effect >= MIN_SHARE_OF_DELAY_IN_ONE_PHASE * total_effect:
                course = phase_course
        increases = _find_clear_increases(phase_residuals, course, certain_phases)
        phases = [int(phase) for phase in np.argsort(increases)[::-1] if increases[phase] > 0]
        if increases.sum() < MIN_SHARE_OF_DELAY_IN_CLEAR_PHASES * course.mean_delay:
            phases = [int(np.argmax(_measure_increases(phase_residuals, course)))]
        elif sorted(phases) != certain_phases:
            course = _find_best_course(residuals[phases].sum(axis=0), evidence)
        delay = self._extend(
            course, self.unexplained_shares[phases, : self.comparable_rows[0]].sum(axis=0)
        )
        late_steps = int(np.count_nonzero(delay))
        if course.mean_delay <= 0 or not self._lasts_as_seen(course, evidence, late_steps):
            return None
        if course.has_mostly_stalls:
            stalls = np.maximum(residuals[phases].sum(axis=0), 0.0)
            delay[self.comparable_rows] = np.where(course.is_upper, stalls, 0.0)
            self.unexplained_shares[:, delay > 0] = 0.0
        else:
            increases = np.maximum(_measure_increases(phase_residuals, course), 0.0)
            phase_shares = increases / max(increases.sum(), course.mean_delay)
            self.unexplained_shares[:phase_count] -= delay * phase_shares[:, None]
            self.unexplained_shares[phase_count:] -= delay
        return self._build_episode(course, evidence, phases, delay), course.mean_delay

    def _lasts_as_seen(self, course: Course, evidence: list[Evidence], late_steps: int) -> bool:
        """Return True if a delay of `late_steps` steps is of stalls, or lasts, as its evidence says."""
        if course.has_mostly_stalls:
            return any(item.is_of_stalls for item in evidence)
        min_steps = MIN_STEPS_OF_LASTING_DELAY
        if len(self.times.ranks) == 2:
            min_steps = window_scan.min_window_of_pair(len(self.comparable_rows))
        return late_steps >= min_steps and not all(item.is_of_stalls for item in evidence)

    def _extend(self, course: Course, warm_up_residuals: Floats) -> Floats:
        """Return the delay of all steps, [step], also of those in a run that are not compared.

        A run that begins with the first comparable step includes the warm-up, whose residuals are given,
        if that is as slow. All are shares of a step.
        """
        delay = np.zeros(len(self.times.step_numbers))
        delay[self.comparable_rows] = course.delays
        if course.pattern == "drifting" or course.has_mostly_stalls:
            return delay
        for first_row, last_row in course.upper_runs:
            delay[self.comparable_rows[first_row] : self.comparable_rows[last_row] + 1] = (
                course.mean_delay
            )
        has_warm_up = course.first_row == 0 and len(warm_up_residuals) > 0
        if has_warm_up and np.median(warm_up_residuals) > course.mean_delay / 2:
            delay[: self.comparable_rows[0]] = course.mean_delay
        return delay

    def _build_episode(
        self, course: Course, evidence: list[Evidence], phase_rows: list[int], delay_shares: Floats
    ) -> Episode:
        """Build the episode of a delay.

        Args:
            course: How the delay develops over the steps.
            evidence: The test of each phase, or of each way of testing, that found it.
            phase_rows: Rows of the phases in which the rank is late.
            delay_shares: The delay, [step], as shares of a step.
        """
        delay_ns = np.zeros(self.times.total_compute_ns.shape)  # [step, rank]
        delay_ns[:, self.rank_column] = delay_shares * self.times.typical_step_ns
        phase_names = [self.times.phase_names[phase] for phase in phase_rows]
        return Episode(
            rank_columns=(self.rank_column,),
            phase=phase_names[0],
            delay_ns=delay_ns,
            pattern="sparse" if course.has_mostly_stalls else course.pattern,
            p_value=min(item.p_value for item in evidence),
            relative_error=0.0
            if course.has_mostly_stalls
            else max(item.relative_error for item in evidence),
            period_steps=_find_period(np.flatnonzero(delay_shares))
            if course.has_mostly_stalls
            else None,
            more_phases=tuple(phase_names[1:]),
        )


def _measure_overlap(rows: Indices, other_rows: Indices) -> float:
    """Return the share of the shorter of two sets of rows that is in both."""
    return len(np.intersect1d(rows, other_rows)) / min(len(rows), len(other_rows))


def _find_best_course(residual: Floats, evidence: list[Evidence]) -> Course:
    """Follow a delay, [step], from the steps of each evidence; return the course that explains most."""
    courses = []
    for item in evidence:
        is_inside = np.zeros(len(residual), np.bool_)
        is_inside[item.comparable_indices] = True
        courses.append(fit_courses(residual, is_inside, scattered=item.is_of_stalls))
    return min(courses, key=lambda course: course.cost)


def _find_period(stall_rows: Indices) -> int | None:
    """Return the steps between stalls (rows) if nearly all keep that period, or multiples; else None."""
    gaps = np.diff(stall_rows)
    gaps = gaps[gaps > 1]
    period = int(np.median(gaps)) if len(gaps) else 0
    multiples = np.maximum(np.rint(gaps / max(period, 1)), 1)
    regular_share = np.mean(np.abs(gaps - multiples * period) <= 1)
    return period if period > 2 and regular_share >= MIN_SHARE_OF_GAPS_WITH_PERIOD else None


def _measure_increases(residuals: Floats, course: Course) -> Floats:
    """Measure by how much each phase is longer where a rank is late, [phase] as shares of a step.

    `residuals` is what the rank takes beyond its peers, [phase, step].
    """
    inside = course.is_upper
    upper = (np.mean if course.has_mostly_stalls else np.median)(residuals[:, inside], axis=1)
    lower = np.median(residuals[:, ~inside], axis=1) if _has_baseline(inside) else 0.0
    return np.asarray(upper - lower)


def _has_baseline(inside: Flags) -> bool:
    """Return True if enough steps lie outside of a delay to show what is usual."""
    return bool(np.mean(~inside) >= MIN_SHARE_OF_STEPS_FOR_BASELINE)


def _find_clear_increases(residuals: Floats, course: Course, certain: list[int]) -> Floats:
    """Return the increases of phases, 0 where one is not clearly longer, [phase] as shares of a step.

    `residuals` is [phase, step]; `certain` phases (rows) always are longer.
    """
    increases = _measure_increases(residuals, course)
    errors = np.array([_least_clear_delay(residual, course.is_upper) for residual in residuals])
    is_clear = (increases > errors) | np.isin(np.arange(len(residuals)), certain)
    return np.where(is_clear, np.maximum(increases, 0.0), 0.0)


def _least_clear_delay(residual: Floats, is_inside: Flags) -> float:
    """Return the delay that a phase must exceed to be clearly longer; all are shares of a step.

    `residual` is what a rank takes for it beyond its peers, [step], `is_inside` flags the late steps.
    """
    edges = block_edges(len(residual))
    changes = np.diff(block_medians(residual[:, None], edges)[:, 0])  # from block to block
    noise = measure_deviation(changes) / np.sqrt(2)
    steps_of_block = len(residual) / (len(edges) - 1)
    late_steps, has_baseline = np.count_nonzero(is_inside), _has_baseline(is_inside)
    inverse_steps = 1 / late_steps + (1 / (len(residual) - late_steps) if has_baseline else 0.0)
    spread = 0.0 if has_baseline else SPREAD_OF_RANKS_WITHOUT_BASELINE
    return (
        MIN_Z_SCORE_OF_LONGER_PHASE
        * math.sqrt(math.pi / 2)  # a median's standard error, as a multiple of a mean's
        * float(np.sqrt(noise**2 * steps_of_block * inverse_steps + spread**2))
    )


def find_migrating(
    times: ComputeTime, residuals: Floats, residuals_of_phases: list[Floats]
) -> Episode | None:
    """Search all phases together for a delay that migrates: some rank is late, each time another one.

    `residuals` is what ranks take beyond their peers in all phases, [step, rank] as shares of a step,
    `residuals_of_phases` in each of them.
    """
    rows = np.flatnonzero(times.is_comparable_row)
    comparable_residuals = residuals[times.comparable_rows]
    has_few_ranks = len(times.ranks) < MIN_RANKS_FOR_MIGRATING_TEST
    if has_few_ranks or len(rows) < 2 * MIN_STEPS_OF_STRETCH:
        return None
    edges = _divide_into_stretches(len(comparable_residuals))
    stretches = block_medians(comparable_residuals, edges)  # [stretch, rank]
    deviations = (stretches - medians(stretches, axis=0))[stretches != 0]
    spread = max(measure_deviation(deviations) if deviations.size else 0.0, MIN_SPREAD_OF_STRETCHES)
    # Nearly always some rank is late: of many, noise has dozens as late as a short delay.
    longest = stretches.max(axis=1)
    clear_delays = longest[longest > max(MIN_MIGRATING_DELAY, MIN_Z_SCORE_OF_STRETCH * spread)]
    if not clear_delays.size:
        return None
    level = float(np.median(clear_delays))
    for _ in range(ROUNDS_OF_MIGRATING_LEVEL):
        gains = np.minimum(comparable_residuals, level + spread) - level / 2
        is_late = find_best_runs(gains, MIN_STEPS_OF_STRETCH * level / 4)  # [comparable step, rank]
        if not _migrates(is_late):
            return None
        level = float(np.median(comparable_residuals[is_late]))
    p_value = float(student_tail(level / spread, FREEDOM_OF_STRETCHES)) * stretches.size
    if p_value > MAX_P_VALUE_OF_MIGRATING_DELAY:
        return None
    delay_ns = np.zeros_like(residuals)
    delay_ns[rows] = is_late * level * times.typical_step_ns
    phase_delays = [float(of_phase[rows][is_late].mean()) for of_phase in residuals_of_phases]
    return Episode(
        rank_columns=tuple(np.flatnonzero(is_late.any(axis=0)).tolist()),
        phase=times.phase_names[int(np.argmax(phase_delays))],
        delay_ns=delay_ns,
        pattern="migrating",
        p_value=p_value,
    )


def _migrates(is_late: Flags) -> bool:
    """Return True if in most steps some rank is late, [step, rank], one alone, and another each time."""
    late_step_counts, has_late_rank = is_late.sum(axis=0), is_late.any(axis=1)  # [rank], [step]
    return bool(
        np.count_nonzero(late_step_counts) >= MIN_RANKS_VISITED
        and has_late_rank.mean() >= MIN_SHARE_OF_STEPS_WITH_LATE_RANK
        and late_step_counts.max() <= MAX_SHARE_OF_STRETCHES_OF_ONE_RANK * late_step_counts.sum()
        and np.mean(is_late[has_late_rank].sum(axis=1) == 1) >= MIN_SHARE_OF_LATE_STEPS_OF_ONE_RANK
    )


def _divide_into_stretches(step_count: int) -> Ints:
    """Return the first rows of the shortest stretches of a delay that migrates, and the end."""
    first_rows = np.arange(0, step_count - MIN_STEPS_OF_STRETCH, MIN_STEPS_OF_STRETCH)
    return np.append(first_rows, step_count)
