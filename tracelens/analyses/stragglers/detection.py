"""Detection: which ranks are late by their own work, in which phases and steps, and in what pattern.

What is found as evidence is only where to look: the course of a rank's delay is then followed through
all steps (`stats/changepoint.py`), the greatest evidence first; what an episode explains is no evidence
of another one. Its pattern is read off: one run of steps or several, short or long.

A delay that migrates stands out on no rank: nearly always some rank is late for some steps, each time
another one. So before, it is asked whether noise alone is ever late so far for so many steps in a row:
noise that lasts migrates, too, but does not go as far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.analyses.stragglers.evidence import find_evidence
from tracelens.stats import window_scan
from tracelens.stats.changepoint import Course, best_runs, courses
from tracelens.stats.robust import block_edges, block_medians, deviation, medians
from tracelens.stats.tails import student_tail

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.analyses.stragglers.evidence import Evidence
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.findings import Pattern


# share of the fewer steps: evidence that has as many in common is of one delay [calibrate]
MIN_OVERLAP_OF_ONE_DELAY: Final = 0.5
# share of a delay: evidence of which less is left is explained by an episode [calibrate]
MIN_SHARE_OF_DELAY_LEFT: Final = 0.5
# share of the delay in all phases: if one phase has as much, its own steps are followed [calibrate]
MIN_SHARE_OF_DELAY_IN_ONE_PHASE: Final = 0.75
# share of a delay: if phases that are clearly longer have less, the phase that grew most
# is named alone [calibrate]
MIN_SHARE_OF_DELAY_IN_CLEAR_PHASES: Final = 0.5
MIN_STEPS_OF_LASTING_DELAY: Final = 4  # steps: a delay of fewer does not last [calibrate]
# share of the fewer steps: evidence that has as many in common with an episode must
# be as great [calibrate]
MIN_OVERLAP_WITH_EPISODE: Final = 0.5
# share of gaps between stalls: a period is reported if as many keep it [calibrate]
MIN_SHARE_OF_GAPS_WITH_PERIOD: Final = 0.75
# share of steps: a rank is slower throughout if it is beyond half of its lower level in as many [chosen]
MIN_SHARE_OF_STEPS_AT_LOWER_LEVEL: Final = 0.9
# share of steps: fewer without a delay do not show what is usual [calibrate]
MIN_SHARE_OF_STEPS_FOR_BASELINE: Final = 0.25
# standard errors: a phase that is longer by less is not clearly longer [calibrate]
MIN_Z_SCORE_OF_LONGER_PHASE: Final = 3
# of a step: equal ranks differ by this standard deviation if nothing shows what is usual,
# without the delay [calibrate]
SPREAD_OF_RANKS_WITHOUT_BASELINE: Final = 0.003
# ranks: a delay that migrates is not searched for among fewer [calibrate]
MIN_RANKS_FOR_MIGRATING_TEST: Final = 3
# steps: a delay that migrates stays at each rank for as many in a row [calibrate; one decision
# in find_migrating, _edges]
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
    """Ranks that are late in a phase in the same steps; numbers are columns and rows of `ComputeTime`.

    `effect` is the lateness in nanoseconds, [step, rank], 0 outside; `also` names further phases of the
    same ranks whose lateness is part of it; `unsure` is the standard error of `effect`, as a share.
    """

    ranks: tuple[int, ...]
    phase: str
    first: int
    last: int
    effect: Floats
    pattern: Pattern
    p: float
    unsure: float = 0.0
    period: int | None = None
    also: tuple[str, ...] = ()

    @property
    def touched(self) -> Indices:
        """Rows in which it happens."""
        return np.flatnonzero(self.effect.any(axis=1))


def find_episodes(own: ComputeTime) -> list[Episode]:
    """Return every rank that is late in a phase, lastingly or now and then."""
    if not own.phases or not own.settled.any():
        return []
    searched = [_residuals(own, values) for values in own.own]
    if len(own.phases) > 1:
        searched.append(_residuals(own, own.total))
    migrating = find_migrating(own, searched[-1], searched[: len(own.phases)])
    if migrating:
        for values in searched:
            values[migrating.effect > 0] = 0.0
    settled = [values[own.settled_rows] for values in searched]
    evidence = find_evidence(settled, np.flatnonzero(own.settled))
    found = [migrating] if migrating else []
    for rank in sorted({one.rank for one in evidence}):
        mine = [one for one in evidence if one.rank == rank]
        found += _Rank(own, np.stack([values[:, rank] for values in searched]), rank).explain(mine)
    return found


def _residuals(own: ComputeTime, values: Floats) -> Floats:
    """Return each rank's time beyond its peers in every step, as a share of the step."""
    if len(own.ranks) > 2:
        return window_scan.peer_residuals(values, own.step_ns)
    difference = np.nan_to_num(values[:, 1] - values[:, 0], nan=0.0) / own.step_ns
    return np.stack([-difference, difference], axis=1)


@dataclass(eq=False)
class _Rank:
    """What of a rank's delays is not yet explained: shares of the step, [series, step]."""

    own: ComputeTime
    left: Floats
    rank: int

    def explain(self, evidence: list[Evidence]) -> list[Episode]:
        """Return the episodes that there is evidence for, the greatest first."""
        rows = np.flatnonzero(self.own.settled)
        before = self.left[:, rows].copy()
        found = []
        while evidence:
            one = max(evidence, key=lambda seen: self._gain(seen, rows))
            same = [
                other
                for other in evidence
                if _overlap(one.rows, other.rows) >= MIN_OVERLAP_OF_ONE_DELAY
            ]
            followed = self._followed(same, rows)
            evidence = [other for other in evidence if other is not one]
            if followed is not None:
                episode, level = followed
                found.append(episode)
                evidence = [
                    other
                    for other in evidence
                    if self._is_left(other, before, rows, level * _same_steps(other, episode, rows))
                ]
        return self._with_lower_level(found, rows)

    def _with_lower_level(self, found: list[Episode], rows: Indices) -> list[Episode]:
        """Add to the longest delay what the rank is slower by in all other steps as well.

        A delay is measured from the rank's own lower level. Where that is clearly above the peers', the
        rank has two levels, and both are lost.
        """
        lasting = [one for one in found if one.pattern != "sparse"]
        if not lasting:
            return found
        longest = max(lasting, key=lambda one: len(one.touched))
        names = (longest.phase, *longest.also)
        rest = self.left[[self.own.phases.index(name) for name in names]].sum(axis=0)[rows]
        level = float(np.median(rest))
        is_slower = level >= window_scan.least_effect(len(self.own.ranks))
        if not is_slower or np.mean(rest > level / 2) < MIN_SHARE_OF_STEPS_AT_LOWER_LEVEL:
            return found
        effect = longest.effect.copy()
        effect[:, self.rank] += level * self.own.step_ns
        whole = replace(longest, effect=effect, first=0, last=len(effect) - 1, pattern="persistent")
        return [whole if one is longest else one for one in found]

    def _gain(self, seen: Evidence, rows: Indices) -> float:
        """Return how much of the sum of squares a delay explains."""
        values = self.left[seen.series, rows]
        return float((values**2).sum()) - _best_course(values, [seen]).cost

    def _is_left(self, seen: Evidence, before: Floats, rows: Indices, least: float) -> bool:
        """Return whether a good part of what was seen is not yet explained, and it is the `least`."""
        was = np.median(before[seen.series, seen.rows])
        left = np.median(self.left[seen.series, rows[seen.rows]])
        return bool(left >= max(MIN_SHARE_OF_DELAY_LEFT * was, least))

    def _followed(self, seen: list[Evidence], rows: Indices) -> tuple[Episode, float] | None:
        """Follow a delay through all steps, in the phases that it is a delay in, and take it away."""
        values = self.left[:, rows]
        phases = len(self.own.phases)
        sure = sorted({one.series for one in seen if one.series < phases})
        shape = _best_course(values[-1], seen)
        if len(sure) == 1:
            named = _best_course(values[sure[0]], seen)
            if named.effect.sum() >= MIN_SHARE_OF_DELAY_IN_ONE_PHASE * shape.effect.sum():
                shape = named
        parts = _parts(values[:phases], shape, sure)
        chosen = [int(phase) for phase in np.argsort(parts)[::-1] if parts[phase] > 0]
        if parts.sum() < MIN_SHARE_OF_DELAY_IN_CLEAR_PHASES * shape.level:
            chosen = [int(np.argmax(_heights(values[:phases], shape)))]
        elif sorted(chosen) != sure:
            shape = _best_course(values[chosen].sum(axis=0), seen)
        line = self._line(shape, rows, self.left[chosen, : rows[0]].sum(axis=0))
        if shape.level <= 0 or not self._is_sort_of(shape, seen, int(np.count_nonzero(line))):
            return None
        if shape.stalls:
            line[rows] = np.where(shape.inside, np.maximum(values[chosen].sum(axis=0), 0.0), 0.0)
            self.left[:, line > 0] = 0.0
        else:
            heights = np.maximum(_heights(values[:phases], shape), 0.0)
            self.left[:phases] -= line * (heights / max(heights.sum(), shape.level))[:, None]
            self.left[phases:] -= line
        return self._episode(shape, seen, chosen, line), shape.level

    def _is_sort_of(self, shape: Course, seen: list[Evidence], steps: int) -> bool:
        """Return whether a delay is of the sort that it was taken for: stalls, or lasts long enough."""
        if shape.stalls:
            return any(one.stalls for one in seen)
        count = int(np.count_nonzero(self.own.settled))
        pair = len(self.own.ranks) == 2
        least = window_scan.least_window_of_pair(count) if pair else MIN_STEPS_OF_LASTING_DELAY
        lasting = not all(one.stalls for one in seen)
        return lasting and steps >= least

    def _line(self, shape: Course, rows: Indices, warm_up: Floats) -> Floats:
        """Return the delay in all steps: also in those within a run that could not be compared."""
        line = np.zeros(len(self.own.steps))
        line[rows] = shape.effect
        if shape.pattern == "drifting" or shape.stalls:
            return line
        for first, last in shape.runs:
            line[rows[first] : rows[last] + 1] = shape.level
        if shape.first == 0 and len(warm_up) and np.median(warm_up) > shape.level / 2:
            line[: rows[0]] = shape.level
        return line

    def _episode(
        self, shape: Course, seen: list[Evidence], chosen: list[int], line: Floats
    ) -> Episode:
        touched = np.flatnonzero(line)
        effect = np.zeros(self.own.total.shape)
        effect[:, self.rank] = line * self.own.step_ns
        names = [self.own.phases[phase] for phase in chosen]
        stalls = shape.stalls
        return Episode(
            (self.rank,),
            names[0],
            int(touched[0]),
            int(touched[-1]),
            effect,
            "sparse" if stalls else shape.pattern,
            min(one.p for one in seen),
            0.0 if stalls else max(one.unsure for one in seen),
            period=_period(touched) if stalls else None,
            also=tuple(names[1:]),
        )


def _same_steps(seen: Evidence, episode: Episode, rows: Indices) -> bool:
    """Return whether evidence is of the steps of an episode, by and large."""
    return _overlap(rows[seen.rows], episode.touched) >= MIN_OVERLAP_WITH_EPISODE


def _overlap(one: Indices, other: Indices) -> float:
    """Return what share of the shorter of two sets of rows is in both."""
    return len(np.intersect1d(one, other)) / min(len(one), len(other))


def _best_course(values: Floats, seen: list[Evidence]) -> Course:
    """Follow a delay from the steps of each evidence of it; return what explains most."""
    return min((_course(values, one) for one in seen), key=lambda shape: shape.cost)


def _course(values: Floats, seen: Evidence) -> Course:
    inside = np.zeros(len(values), np.bool_)
    inside[seen.rows] = True
    return courses(values, inside, scattered=seen.stalls)


def _period(touched: Indices) -> int | None:
    """Return the step between stalls if nearly all keep it."""
    gaps = np.diff(touched)
    gaps = gaps[gaps > 1]
    period = int(np.median(gaps)) if len(gaps) else 0
    regular = np.mean(np.abs(gaps - np.maximum(np.rint(gaps / max(period, 1)), 1) * period) <= 1)
    return period if period > 2 and regular >= MIN_SHARE_OF_GAPS_WITH_PERIOD else None


def _heights(values: Floats, shape: Course) -> Floats:
    """Return by how much each phase is longer where a rank is late, [phase]."""
    inside = shape.inside
    upper = (np.mean if shape.stalls else np.median)(values[:, inside], axis=1)
    return np.asarray(upper - (np.median(values[:, ~inside], axis=1) if _enough(inside) else 0.0))


def _enough(inside: Flags) -> bool:
    """Return whether there is enough outside to say what is usual."""
    return bool(np.mean(~inside) >= MIN_SHARE_OF_STEPS_FOR_BASELINE)


def _parts(values: Floats, shape: Course, sure: list[int]) -> Floats:
    """Return those heights, 0 where a phase is hardly longer; those that are `sure` always are."""
    heights = _heights(values, shape)
    errors = np.array([_error(line, shape.inside) for line in values])
    clear = (heights > errors) | np.isin(np.arange(len(values)), sure)
    return np.where(clear, np.maximum(heights, 0.0), 0.0)


def _error(line: Floats, inside: Flags) -> float:
    """Return what a phase's delay must exceed to be clear."""
    edges = block_edges(len(line))
    noise = deviation(np.diff(block_medians(line[:, None], edges)[:, 0])) / np.sqrt(2)
    size = len(line) / (len(edges) - 1)
    count, enough = np.count_nonzero(inside), _enough(inside)
    parts = 1 / count + (1 / (len(line) - count) if enough else 0.0)
    spread = 0.0 if enough else SPREAD_OF_RANKS_WITHOUT_BASELINE
    return (
        MIN_Z_SCORE_OF_LONGER_PHASE
        * math.sqrt(math.pi / 2)  # a median's standard error, as a multiple of a mean's
        * float(np.sqrt(noise**2 * size * parts + spread**2))
    )


def find_migrating(own: ComputeTime, excess: Floats, by_phase: list[Floats]) -> Episode | None:
    """Search all phases together, `excess` as shares of the step, [step, rank]."""
    rows = np.flatnonzero(own.settled)
    values = excess[own.settled_rows]
    if values.shape[1] < MIN_RANKS_FOR_MIGRATING_TEST or len(rows) < 2 * MIN_STEPS_OF_STRETCH:
        return None
    stays = block_medians(values, _edges(len(values)))
    apart = (stays - medians(stays, axis=0))[stays != 0]  # who is not there deviates by nothing
    spread = max(deviation(apart) if apart.size else 0.0, MIN_SPREAD_OF_STRETCHES)
    # Nearly always some rank is late: of many, noise has dozens as late as a short delay.
    worst = stays.max(axis=1)
    far = worst[worst > max(MIN_MIGRATING_DELAY, MIN_Z_SCORE_OF_STRETCH * spread)]
    if not far.size:
        return None
    level = float(np.median(far))
    for _ in range(ROUNDS_OF_MIGRATING_LEVEL):
        gains = np.minimum(values, level + spread) - level / 2
        late = best_runs(gains, MIN_STEPS_OF_STRETCH * level / 4)
        if not _migrates(late):
            return None
        level = float(np.median(values[late]))
    chance = min(float(student_tail(level / spread, FREEDOM_OF_STRETCHES)) * stays.size, 1.0)
    if chance > MAX_P_VALUE_OF_MIGRATING_DELAY:
        return None
    visited = np.flatnonzero(late.any(axis=0))
    effect = np.zeros_like(excess)
    effect[rows] = late * level * own.step_ns
    touched = rows[late.any(axis=1)]
    grown = [float(phase[rows][late].mean()) for phase in by_phase]
    return Episode(
        ranks=tuple(int(rank) for rank in visited),
        phase=own.phases[int(np.argmax(grown))],
        first=int(touched[0]),
        last=int(touched[-1]),
        effect=effect,
        pattern="migrating",
        p=chance,
    )


def _migrates(late: Flags) -> bool:
    """Return whether nearly always one rank is late, and each time another one."""
    counts, busy = late.sum(axis=0), late.any(axis=1)
    return bool(
        np.count_nonzero(counts) >= MIN_RANKS_VISITED
        and busy.mean() >= MIN_SHARE_OF_STEPS_WITH_LATE_RANK
        and counts.max() <= MAX_SHARE_OF_STRETCHES_OF_ONE_RANK * counts.sum()
        and np.mean(late[busy].sum(axis=1) == 1) >= MIN_SHARE_OF_LATE_STEPS_OF_ONE_RANK
    )


def _edges(steps: int) -> Ints:
    """Return where stays as short as one can be begin, and the end."""
    return np.append(np.arange(0, steps - MIN_STEPS_OF_STRETCH, MIN_STEPS_OF_STRETCH), steps)
