"""What became of a job's wall time, from its launch to its last exit: the ledger of its life.

Each nanosecond of each attempt is of one use: a step that was kept, one that was done again later, the
step in which it failed, what the first step and slow steps took beyond the usual step, checkpoints,
evaluation, data preparation, start-up, a hang, the end of the program; and the time between attempts.
An attempt is judged by the rank that got farthest. Goodput is the time of kept steps over all
(docs/life.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.life.attempts import find_attempts, find_wall_offset_ns
from tracelens.accounting.life.courses import PAUSES, Course
from tracelens.accounting.life.failed_attempts import describe_failure
from tracelens.model import fmt
from tracelens.schema.life import Ended, Launched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.accounting.life.attempts import Attempt
    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace

# Uses of wall time in the order in which they are shown, and what they are called.
USES: Final[dict[str, str]] = {
    "kept": "steps that were kept",
    "repeated": "steps done again later",
    "failed_step": "failed steps",
    "slow_steps": "slow steps",
    "first_step": "first steps, beyond a usual one",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "data_preparation": "data preparation",
    "start_up": "start-up",
    "hanging": "hanging",
    "shut_down": "end of the program",
    "dead": "between attempts",
}
LIFE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "attempt": pl.Int32(),  # from 1
    "use": pl.String(),  # one of `USES`
    "ns": pl.Int64(),
    "share": pl.Float64(),  # of the wall time of the whole life
}
ATTEMPT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "attempt": pl.Int32(),  # from 1
    "ranks": pl.Int32(),
    "begin_ns": pl.Int64(),  # from the begin of the life on
    "end_ns": pl.Int64(),
    "first_step": pl.Int32(),  # null without a complete step
    "last_step": pl.Int32(),
    "kept_steps": pl.Int32(),  # null = not known
    "world": pl.Int32(),  # ranks of the job; 0 = nothing was seen of them
    "failure": pl.String(),  # how it failed: first the rank that explains the others; null = it did not
}
# steps: of fewer, an attempt is judged by the usual step of the whole life [chosen]
MIN_STEPS_FOR_USUAL_OF_ATTEMPT: Final = 10
# of the usual step: a step that takes no more beyond it is not slow [chosen]
MIN_DELAY_OF_SLOW_STEP: Final = 0.25
# scaled MAD of steps: a step within so many of the usual one is not slow [chosen]
MIN_DEVIATIONS_OF_SLOW_STEP: Final = 6.0
_MAD_TO_SIGMA: Final = 1.4826  # ratio: sigma of a normal distribution to its MAD [definition]
MIN_HANG_NS: Final = 5_000_000_000  # ns: less without progress is no hang [policy]
MIN_STEPS_IN_HANG: Final = 10  # usual steps: less without progress is no hang [policy]


@dataclass(frozen=True, eq=False)
class LifeLedger:
    """The attempts of a job and the uses of its wall time, `uses` in `LIFE_COLUMNS`.

    `uses` holds whole nanoseconds that add up to `wall_ns` exactly. `is_kept_known` is False if each
    attempt numbers its steps from 0, so that it is not known which were done again. `lives` are the
    attempts that left a recording, `numbers` say which those are, from 1.
    """

    wall_ns: int
    attempts: pl.DataFrame
    uses: pl.DataFrame
    is_kept_known: bool
    lives: tuple[Attempt, ...] = field(repr=False)
    numbers: tuple[int, ...] = field(repr=False, default=())

    @property
    def goodput(self) -> float:
        """The time of kept steps as a share of the wall time."""
        return self.share("kept")

    def find_later_failures(self, attempt: Attempt) -> dict[int, str]:
        """Return how the attempts after one that left a recording failed, by number."""
        number = self.numbers[self.lives.index(attempt)]
        later = self.attempts.filter((pl.col("attempt") > number) & pl.col("failure").is_not_null())
        return dict(later.select("attempt", "failure").iter_rows())

    def share(self, use: str) -> float:
        """Return the share of the wall time that a use took."""
        return float(self.uses.filter(pl.col("use") == use)["share"].sum())


def measure_life(trace: Trace) -> LifeLedger | None:
    """Account for the wall time of a job's life; None for what TraceLens did not record."""
    attempts = find_attempts(trace)
    if not attempts:
        return None
    courses = [Course.read(trace, attempt.process) for attempt in attempts]
    failures = [describe_failure(trace, attempt) for attempt in attempts]
    begins_ns, last_ns = _bound_life(trace, attempts)
    later_steps = _find_later_steps(courses)
    all_steps_ns = np.concatenate([np.diff(course.begin_ns) for course in courses])
    rows: list[tuple[int, str, int]] = []
    reached_ns = begins_ns[0]
    for index, (attempt, course) in enumerate(zip(attempts, courses, strict=True)):
        rows.append((max(index, 1), "dead", begins_ns[index] - reached_ns))  # after the one before
        uses = _AttemptUses(
            attempt,
            course,
            begins_ns[index],
            later_steps[index],
            all_steps_ns,
            is_last=index + 1 == len(attempts),
        )
        rows += [(index + 1, use, ns) for use, ns in uses.sum_up().items()]
        reached_ns = attempt.end_ns
    rows.append((len(attempts), "shut_down", last_ns - reached_ns))
    wall_ns = last_ns - begins_ns[0]
    is_kept_known = _is_kept_known(courses)
    table = [
        {
            "attempt": number,
            "ranks": len({life.rank for life in attempt.lives}),
            "begin_ns": begin_ns - begins_ns[0],
            "end_ns": attempt.end_ns - begins_ns[0],
            "first_step": next(iter(course.step.tolist()), None),
            "last_step": next(reversed(course.step.tolist()), None),
            "kept_steps": int((course.step < later_step).sum())
            if is_kept_known or later_step == np.inf
            else None,
            "world": attempt.world,
            "failure": failure,
        }
        for number, (attempt, course, begin_ns, later_step, failure) in enumerate(
            zip(attempts, courses, begins_ns, later_steps, failures, strict=True), 1
        )
    ]
    return LifeLedger(
        wall_ns,
        pl.DataFrame(table, schema=ATTEMPT_COLUMNS),
        _to_table(rows, wall_ns),
        is_kept_known,
        tuple(attempt for attempt in attempts if attempt.process is not None),
        tuple(number for number, attempt in enumerate(attempts, 1) if attempt.process is not None),
    )


def name_uses(uses: Mapping[str, float], *, is_kept_known: bool) -> list[str]:
    """Return each use of the wall time but kept steps, with its share, as a phrase.

    Unless it is known which steps were kept (`is_kept_known`), all that may have been done again is
    an upper bound.
    """
    bound_by_use = {} if is_kept_known else {"repeated": "at most "}
    return [
        f"{bound_by_use.get(use, '')}{fmt.percent(share)} {USES[use]}"
        for use, share in uses.items()
        if use != "kept"
    ]


def _bound_life(trace: Trace, attempts: Sequence[Attempt]) -> tuple[list[int], int]:
    """Return when each attempt was launched, and the last exit: of a launcher, if one is known."""
    offset_ns = find_wall_offset_ns(trace)
    entries = trace.journal
    launched_ns = [entry.at_ns + offset_ns for entry in entries if isinstance(entry, Launched)]
    ended_ns = [entry.at_ns + offset_ns for entry in entries if isinstance(entry, Ended)]
    begins_ns: list[int] = []
    reached_ns = min([*launched_ns, attempts[0].begin_ns])
    for attempt in attempts:
        launches_ns = [ns for ns in launched_ns if reached_ns <= ns <= attempt.begin_ns]
        begins_ns.append(max(launches_ns[-1] if launches_ns else attempt.begin_ns, reached_ns))
        reached_ns = attempt.end_ns
    return begins_ns, max([ns for ns in ended_ns if ns > reached_ns], default=reached_ns)


def _find_later_steps(courses: Sequence[Course]) -> list[float]:
    """Return for each attempt the lowest step that a later one began with; infinite without any."""
    later_steps, lowest = [], float("inf")
    for course in reversed(courses):
        later_steps.append(lowest)
        lowest = min([lowest, *course.step[:1].tolist()])
    return later_steps[::-1]


def _is_kept_known(courses: Sequence[Course]) -> bool:
    """Return True if step numbers tell which steps were kept, and which a later attempt did again.

    They do not if every attempt numbers its steps from 0, as hooks do that only count them, or if one of
    several attempts did not record its steps.
    """
    if len(courses) > 1 and not all(course.has_recorded_steps for course in courses):
        return False
    first_steps = [int(course.step[0]) for course in courses if len(course.step)]
    return len(first_steps) < 2 or any(first_steps)


class _AttemptUses:
    """Divides the time of one attempt by its use."""

    def __init__(
        self,
        attempt: Attempt,
        course: Course,
        begin_ns: int,
        later_step: float,
        all_steps_ns: Ints,
        *,
        is_last: bool,
    ) -> None:
        """Prepare to divide the time from `begin_ns` to the end of the attempt.

        Args:
            attempt: The attempt.
            course: Its steps and pauses.
            begin_ns: When it was launched.
            later_step: The lowest step that a later attempt began with; infinite without any.
            all_steps_ns: The lengths of the steps of all attempts.
            is_last: No attempt follows it.
        """
        self._is_last = is_last
        self._attempt = attempt
        self._course = course
        self._begin_ns = begin_ns
        self._later_step = later_step
        self._all_steps_ns = all_steps_ns
        self._usual_ns = 0
        self._uses: Counter[str] = Counter()

    def sum_up(self) -> dict[str, int]:
        """Return the ns of each use; they add up to the time from `begin_ns` to the attempt's end."""
        course, end_ns = self._course, self._attempt.end_ns
        failed_ns = self._attempt.failed_ns
        lived_ns = end_ns if failed_ns is None else min(max(failed_ns, self._begin_ns), end_ns)
        if len(course.step):
            first_ns = max(int(course.begin_ns[0]), self._begin_ns)
            last_ns = min(max(int(course.end_ns[-1]), first_ns), end_ns)
            self._add_outside("start_up", self._begin_ns, first_ns, PAUSES)
            self._add_steps(first_ns, last_ns)
            lived_ns = max(lived_ns, last_ns)
            self._add_tail(last_ns, lived_ns)
        else:
            begun_ns = lived_ns if course.begun_ns is None else course.begun_ns
            begun_ns = min(max(begun_ns, self._begin_ns), lived_ns)
            self._add_outside("start_up", self._begin_ns, begun_ns, PAUSES)
            if course.begun_ns is not None:
                self._add_tail(begun_ns, lived_ns)
        self._uses["shut_down" if self._is_last else "dead"] += end_ns - lived_ns
        return dict(self._uses)

    def _add_outside(self, use: str, begin_ns: int, end_ns: int, pauses: Sequence[str]) -> int:
        """Add a window outside of steps; return how much of it is `use`: what no pause covers, ns."""
        pauses_ns = self._course.measure_pauses(np.array([begin_ns]), np.array([end_ns]), pauses)
        for name, ns in pauses_ns.items():
            self._uses[name] += int(ns[0])
        own_ns = end_ns - begin_ns - sum(int(ns[0]) for ns in pauses_ns.values())
        self._uses[use] += own_ns
        return own_ns

    def _add_steps(self, first_ns: int, last_ns: int) -> None:
        """Add steps, each until the next one begins; what delays them beyond the usual is apart."""
        begins_ns = np.maximum.accumulate(np.clip(self._course.begin_ns, first_ns, last_ns))
        ends_ns = np.append(begins_ns[1:], last_ns)
        pauses_ns = self._course.measure_pauses(begins_ns, ends_ns, PAUSES[:2])
        net_ns = ends_ns - begins_ns - sum(pauses_ns.values(), np.zeros(len(begins_ns), np.int64))
        for name, ns in pauses_ns.items():
            self._uses[name] += int(ns.sum())
        usual_ns, limit_ns = self._find_usual(net_ns)
        delay_ns = np.where(net_ns > limit_ns, net_ns - usual_ns, 0)
        is_hang = delay_ns >= min_hang_ns(usual_ns)
        is_hang &= self._course.end_ns - self._course.begin_ns >= delay_ns  # not between two steps
        is_hang[0] = False
        self._uses["first_step"] += int(delay_ns[0])
        self._uses["hanging"] += int(delay_ns[is_hang].sum())
        self._uses["slow_steps"] += int(delay_ns[1:][~is_hang[1:]].sum())
        is_repeated = self._course.step >= self._later_step
        usual_parts_ns = net_ns - delay_ns
        self._uses["repeated"] += int(usual_parts_ns[is_repeated].sum())
        self._uses["kept"] += int(usual_parts_ns[~is_repeated].sum())

    def _find_usual(self, net_ns: Ints) -> tuple[int, float]:
        """Return the usual length of a step, and above which length a step is slow, ns.

        `net_ns`, [step], are the lengths of this attempt's steps without pauses.
        """
        has_enough = len(net_ns) > MIN_STEPS_FOR_USUAL_OF_ATTEMPT
        sample_ns = net_ns[1:] if has_enough else self._all_steps_ns
        sample_ns = sample_ns if len(sample_ns) else net_ns
        usual_ns = float(np.median(sample_ns))
        sigma_ns = _MAD_TO_SIGMA * float(np.median(np.abs(sample_ns - usual_ns)))
        margin_ns = max(MIN_DELAY_OF_SLOW_STEP * usual_ns, MIN_DEVIATIONS_OF_SLOW_STEP * sigma_ns)
        self._usual_ns = int(usual_ns)
        return int(usual_ns), usual_ns + margin_ns

    def _add_tail(self, last_ns: int, lived_ns: int) -> None:
        """Add the time after the last complete step: the program's end, a lost step, or a hang."""
        if self._attempt.failed_ns is None:
            self._add_outside(
                "shut_down" if self._attempt.is_ended else "kept", last_ns, lived_ns, PAUSES[:2]
            )
            return
        use = "failed_step" if self._course.is_in_step else "shut_down"
        own_ns = self._add_outside(use, last_ns, lived_ns, PAUSES[:2])
        if own_ns >= min_hang_ns(self._usual_ns):
            hung_ns = own_ns - self._usual_ns
            self._uses[use] -= hung_ns
            self._uses["hanging"] += hung_ns


def min_hang_ns(usual_ns: float) -> float:
    """Return for how long nothing must happen to be a hang, ns; a step takes `usual_ns` usually."""
    return max(MIN_HANG_NS, MIN_STEPS_IN_HANG * usual_ns)


def _to_table(rows: Sequence[tuple[int, str, int]], wall_ns: int) -> pl.DataFrame:
    """Sum up the uses of each attempt, in `LIFE_COLUMNS`."""
    table = pl.DataFrame(rows, schema=["attempt", "use", "ns"], orient="row")
    order = pl.col("use").replace_strict({use: number for number, use in enumerate(USES)})
    summed = table.group_by("attempt", "use").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
    return (
        summed.with_columns(share=pl.col("ns") / max(wall_ns, 1))
        .sort("attempt", order)
        .select(pl.col(name).cast(dtype) for name, dtype in LIFE_COLUMNS.items())
    )
