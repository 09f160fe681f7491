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
# find_migrating, _edges]
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
    `relative_error` is its standard error as a share of it, `period` the steps between stalls.
    """

    ranks: tuple[int, ...]
    phase: str
    delay_ns: Floats
    pattern: Pattern
    p_value: float
    relative_error: float = 0.0
    period: int | None = None
    more_phases: tuple[str, ...] = ()

    @property
    def phases(self) -> tuple[str, ...]:
        """All phases that hold the delay, the one with most of it first."""
        return (self.phase, *self.more_phases)

    @cached_property
    def rows(self) -> Indices:
        """Rows (steps) in which a rank is late, ascending."""
        return np.flatnonzero(self.delay_ns.any(axis=1))

    @cached_property
    def mean_delay_ns(self) -> float:
        """Delay of the latest rank of each late step, mean."""
        return float(self.delay_ns[self.rows].max(axis=1).mean())


def find_episodes(times: ComputeTime) -> list[Episode]:
    """Find every delay of a single rank, and a delay that migrates."""
    if not times.phases or not times.settled.any():
        return []
    series = [_measure_residuals(times, phase_ns) for phase_ns in times.own]
    if len(times.phases) > 1:
        series.append(_measure_residuals(times, times.total))
    migrating = find_migrating(times, series[-1], series[: len(times.phases)])
    if migrating:
        for residuals in series:
            residuals[migrating.delay_ns > 0] = 0.0
    settled = [residuals[times.settled_rows] for residuals in series]
    evidence = find_evidence(settled, np.flatnonzero(times.settled))
    episodes = [migrating] if migrating else []
    for rank in sorted({item.rank for item in evidence}):
        of_rank = [item for item in evidence if item.rank == rank]
        unexplained = np.stack([residuals[:, rank] for residuals in series])
        episodes += _RankDelays(times, unexplained, rank).explain(of_rank)
    return episodes


def _measure_residuals(times: ComputeTime, spent_ns: Floats) -> Floats:
    """Measure each rank's time beyond its peers in every step, [step, rank] as shares of a step."""
    if len(times.ranks) > 2:
        return window_scan.measure_peer_residuals(spent_ns, times.step_ns)
    difference = np.nan_to_num(spent_ns[:, 1] - spent_ns[:, 0], nan=0.0) / times.step_ns
    return np.stack([-difference, difference], axis=1)


@dataclass(eq=False)
class _RankDelays:
    """Delays of a rank (column) that no episode explains yet: shares of a step, [series, step].

    The series are the phases and, last, all of them together.
    """

    times: ComputeTime
    unexplained: Floats
    rank: int

    @cached_property
    def rows(self) -> Indices:
        """Rows of the steps that are compared."""
        return np.flatnonzero(self.times.settled)

    def explain(self, evidence: list[Evidence]) -> list[Episode]:
        """Follow the delays that there is evidence for, the greatest first."""
        residuals_before = self.unexplained[:, self.rows].copy()
        episodes = []
        while evidence:
            greatest = max(evidence, key=self._explained_squares)
            of_one_delay = [
                item
                for item in evidence
                if _overlap(greatest.rows, item.rows) >= MIN_OVERLAP_OF_ONE_DELAY
            ]
            followed = self._follow(of_one_delay)
            evidence = [item for item in evidence if item is not greatest]
            if followed is not None:
                episode, level = followed
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
        lasting = [episode for episode in episodes if episode.pattern != "sparse"]
        if not lasting:
            return episodes
        longest = max(lasting, key=lambda episode: len(episode.rows))
        phases = [self.times.phases.index(name) for name in longest.phases]
        residual = self.unexplained[phases].sum(axis=0)[self.rows]
        level = float(np.median(residual))
        is_slower = level >= window_scan.min_effect(len(self.times.ranks))
        if not is_slower or np.mean(residual > level / 2) < MIN_SHARE_OF_STEPS_AT_LOWER_LEVEL:
            return episodes
        delay_ns = longest.delay_ns.copy()
        delay_ns[:, self.rank] += level * self.times.step_ns
        persistent = replace(longest, delay_ns=delay_ns, pattern="persistent")
        return [persistent if episode is longest else episode for episode in episodes]

    def _explained_squares(self, item: Evidence) -> float:
        """Return the part of the sum of squares that a delay explains."""
        residual = self.unexplained[item.series, self.rows]
        return float((residual**2).sum()) - _best_course(residual, [item]).cost

    def _is_unexplained(
        self, item: Evidence, residuals_before: Floats, episode: Episode, level: float
    ) -> bool:
        """Return True if an episode leaves a good part of the evidence.

        In the steps of the episode it must also be as great as the episode's `level`, a share of a step.
        """
        median_before = np.median(residuals_before[item.series, item.rows])
        median = np.median(self.unexplained[item.series, self.rows[item.rows]])
        is_same = _overlap(self.rows[item.rows], episode.rows) >= MIN_OVERLAP_WITH_EPISODE
        return bool(median >= max(MIN_SHARE_OF_DELAY_LEFT * median_before, level * is_same))

    def _follow(self, evidence: list[Evidence]) -> tuple[Episode, float] | None:
        """Follow a delay through all steps, in its phases, and take it away; also return its level."""
        residuals = self.unexplained[:, self.rows]
        count = len(self.times.phases)
        certain = sorted({item.series for item in evidence if item.series < count})
        course = _best_course(residuals[-1], evidence)
        if len(certain) == 1:
            of_phase = _best_course(residuals[certain[0]], evidence)
            if of_phase.effect.sum() >= MIN_SHARE_OF_DELAY_IN_ONE_PHASE * course.effect.sum():
                course = of_phase
        heights = _clear_heights(residuals[:count], course, certain)
        phases = [int(phase) for phase in np.argsort(heights)[::-1] if heights[phase] > 0]
        if heights.sum() < MIN_SHARE_OF_DELAY_IN_CLEAR_PHASES * course.level:
            phases = [int(np.argmax(_measure_heights(residuals[:count], course)))]
        elif sorted(phases) != certain:
            course = _best_course(residuals[phases].sum(axis=0), evidence)
        delay = self._extend(course, self.unexplained[phases, : self.rows[0]].sum(axis=0))
        steps = int(np.count_nonzero(delay))
        if course.level <= 0 or not self._lasts_as_seen(course, evidence, steps):
            return None
        if course.stalls:
            stalled = np.maximum(residuals[phases].sum(axis=0), 0.0)
            delay[self.rows] = np.where(course.is_upper, stalled, 0.0)
            self.unexplained[:, delay > 0] = 0.0
        else:
            heights = np.maximum(_measure_heights(residuals[:count], course), 0.0)
            shares = heights / max(heights.sum(), course.level)
            self.unexplained[:count] -= delay * shares[:, None]
            self.unexplained[count:] -= delay
        return self._build_episode(course, evidence, phases, delay), course.level

    def _lasts_as_seen(self, course: Course, evidence: list[Evidence], steps: int) -> bool:
        """Return True if a delay of `steps` is of stalls, or lasts, as its evidence says."""
        if course.stalls:
            return any(item.stalls for item in evidence)
        least_steps = MIN_STEPS_OF_LASTING_DELAY
        if len(self.times.ranks) == 2:
            least_steps = window_scan.min_window_of_pair(len(self.rows))
        return steps >= least_steps and not all(item.stalls for item in evidence)

    def _extend(self, course: Course, warm_up: Floats) -> Floats:
        """Return the delay of all steps, [step], also of those in a run that are not compared.

        A run that begins with the first settled step includes the warm-up if that is as slow.
        """
        delay = np.zeros(len(self.times.steps))
        delay[self.rows] = course.effect
        if course.pattern == "drifting" or course.stalls:
            return delay
        for first, last in course.runs:
            delay[self.rows[first] : self.rows[last] + 1] = course.level
        if course.first_row == 0 and len(warm_up) and np.median(warm_up) > course.level / 2:
            delay[: self.rows[0]] = course.level
        return delay

    def _build_episode(
        self, course: Course, evidence: list[Evidence], phases: list[int], delay: Floats
    ) -> Episode:
        delay_ns = np.zeros(self.times.total.shape)
        delay_ns[:, self.rank] = delay * self.times.step_ns
        names = [self.times.phases[phase] for phase in phases]
        return Episode(
            ranks=(self.rank,),
            phase=names[0],
            delay_ns=delay_ns,
            pattern="sparse" if course.stalls else course.pattern,
            p_value=min(item.p_value for item in evidence),
            relative_error=0.0 if course.stalls else max(item.relative_error for item in evidence),
            period=_find_period(np.flatnonzero(delay)) if course.stalls else None,
            more_phases=tuple(names[1:]),
        )


def _overlap(rows: Indices, other_rows: Indices) -> float:
    """Return the share of the shorter of two sets of rows that is in both."""
    return len(np.intersect1d(rows, other_rows)) / min(len(rows), len(other_rows))


def _best_course(residual: Floats, evidence: list[Evidence]) -> Course:
    """Follow a delay from the steps of each evidence of it; return the course that explains most."""
    course_fits = []
    for item in evidence:
        inside = np.zeros(len(residual), np.bool_)
        inside[item.rows] = True
        course_fits.append(fit_courses(residual, inside, scattered=item.stalls))
    return min(course_fits, key=lambda course: course.cost)


def _find_period(rows: Indices) -> int | None:
    """Return the steps between stalls if nearly all keep that period."""
    gaps = np.diff(rows)
    gaps = gaps[gaps > 1]
    period = int(np.median(gaps)) if len(gaps) else 0
    regular = np.mean(np.abs(gaps - np.maximum(np.rint(gaps / max(period, 1)), 1) * period) <= 1)
    return period if period > 2 and regular >= MIN_SHARE_OF_GAPS_WITH_PERIOD else None


def _measure_heights(residuals: Floats, course: Course) -> Floats:
    """Measure by how much each phase is longer where a rank is late, [phase] as shares of a step."""
    inside = course.is_upper
    upper = (np.mean if course.stalls else np.median)(residuals[:, inside], axis=1)
    lower = np.median(residuals[:, ~inside], axis=1) if _has_baseline(inside) else 0.0
    return np.asarray(upper - lower)


def _has_baseline(inside: Flags) -> bool:
    """Return True if enough steps lie outside of a delay to show what is usual."""
    return bool(np.mean(~inside) >= MIN_SHARE_OF_STEPS_FOR_BASELINE)


def _clear_heights(residuals: Floats, course: Course, certain: list[int]) -> Floats:
    """Return the heights of phases, 0 where one is not clearly longer; `certain` phases always are."""
    heights = _measure_heights(residuals, course)
    errors = np.array([_least_clear_delay(residual, course.is_upper) for residual in residuals])
    is_clear = (heights > errors) | np.isin(np.arange(len(residuals)), certain)
    return np.where(is_clear, np.maximum(heights, 0.0), 0.0)


def _least_clear_delay(residual: Floats, inside: Flags) -> float:
    """Return the delay, as a share of a step, that a phase must exceed to be clearly longer."""
    edges = block_edges(len(residual))
    noise = measure_deviation(np.diff(block_medians(residual[:, None], edges)[:, 0])) / np.sqrt(2)
    steps_of_block = len(residual) / (len(edges) - 1)
    steps, has_baseline = np.count_nonzero(inside), _has_baseline(inside)
    per_step = 1 / steps + (1 / (len(residual) - steps) if has_baseline else 0.0)
    spread = 0.0 if has_baseline else SPREAD_OF_RANKS_WITHOUT_BASELINE
    return (
        MIN_Z_SCORE_OF_LONGER_PHASE
        * math.sqrt(math.pi / 2)  # a median's standard error, as a multiple of a mean's
        * float(np.sqrt(noise**2 * steps_of_block * per_step + spread**2))
    )


def find_migrating(
    times: ComputeTime, residuals: Floats, residuals_of_phases: list[Floats]
) -> Episode | None:
    """Search all phases together for a delay that migrates; both are [step, rank], shares of a step."""
    rows = np.flatnonzero(times.settled)
    settled = residuals[times.settled_rows]
    if settled.shape[1] < MIN_RANKS_FOR_MIGRATING_TEST or len(rows) < 2 * MIN_STEPS_OF_STRETCH:
        return None
    stretches = block_medians(settled, _edges(len(settled)))
    is_there = stretches != 0
    deviations = (stretches - medians(stretches, axis=0))[is_there]
    spread = max(measure_deviation(deviations) if deviations.size else 0.0, MIN_SPREAD_OF_STRETCHES)
    # Nearly always some rank is late: of many, noise has dozens as late as a short delay.
    latest = stretches.max(axis=1)
    clear = latest[latest > max(MIN_MIGRATING_DELAY, MIN_Z_SCORE_OF_STRETCH * spread)]
    if not clear.size:
        return None
    level = float(np.median(clear))
    for _ in range(ROUNDS_OF_MIGRATING_LEVEL):
        gains = np.minimum(settled, level + spread) - level / 2
        is_late = find_best_runs(gains, MIN_STEPS_OF_STRETCH * level / 4)
        if not _migrates(is_late):
            return None
        level = float(np.median(settled[is_late]))
    p_value = float(student_tail(level / spread, FREEDOM_OF_STRETCHES)) * stretches.size
    if p_value > MAX_P_VALUE_OF_MIGRATING_DELAY:
        return None
    delay_ns = np.zeros_like(residuals)
    delay_ns[rows] = is_late * level * times.step_ns
    growth = [float(of_phase[rows][is_late].mean()) for of_phase in residuals_of_phases]
    return Episode(
        ranks=tuple(np.flatnonzero(is_late.any(axis=0)).tolist()),
        phase=times.phases[int(np.argmax(growth))],
        delay_ns=delay_ns,
        pattern="migrating",
        p_value=p_value,
    )


def _migrates(is_late: Flags) -> bool:
    """Return True if in most steps some rank is late, one alone, and each time another one."""
    counts, has_late_rank = is_late.sum(axis=0), is_late.any(axis=1)
    return bool(
        np.count_nonzero(counts) >= MIN_RANKS_VISITED
        and has_late_rank.mean() >= MIN_SHARE_OF_STEPS_WITH_LATE_RANK
        and counts.max() <= MAX_SHARE_OF_STRETCHES_OF_ONE_RANK * counts.sum()
        and np.mean(is_late[has_late_rank].sum(axis=1) == 1) >= MIN_SHARE_OF_LATE_STEPS_OF_ONE_RANK
    )


def _edges(steps: int) -> Ints:
    """Return the begins of the shortest stretches of a delay that migrates, and the end."""
    return np.append(np.arange(0, steps - MIN_STEPS_OF_STRETCH, MIN_STEPS_OF_STRETCH), steps)
