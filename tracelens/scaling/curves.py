"""How efficiency falls, or a step grows, with the number of ranks or servers, and by which factor.

Against the smallest run of a curve, efficiency is (weak scaling) step_0 / step_n, where each rank keeps
its work, or (strong scaling) n_0 step_0 / (n step_n), where all share the same. As a step is useful
computation / parallel efficiency, and that the product of POP's factors, efficiency is the product of
four ratios: load balance, serialisation and transfer to those of the smallest run, and computation
(useful computation of the smallest run / that of this one, of all ranks or of each). So each factor's
part of the loss is its logarithm's part of the whole (pop-coe.eu, "POP standard metrics").
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.scaling.forecast import Forecast, Sizes, forecast, forecast_by_replay
from tracelens.scaling.points import FACTORS, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracelens.replay.whatif import Replay

__all__ = ["By", "Curve", "Kind", "Row", "Scaling", "curves"]

By = Literal["workers", "shards"]
Kind = Literal["weak", "strong"]
# exponent of work per rank: weak and strong scaling cannot be told apart nearer to
# the middle [chosen]
MIN_DISTANCE_IF_KIND_CLEAR: Final = 0.25
_OF_FORECAST: Final = (
    *("workers", "work_ns", "slowest_ns", "step_ns"),
    *("communication_ns", "hidden_ns", "backprop_ns"),
)
MIN_LOSS_TO_NAME: Final = 0.01  # share of efficiency: a smaller loss gets no name [policy]


@dataclass(frozen=True)
class Row:
    """A size of a curve: of its `runs` the one with the median step; `spread`: how far steps are apart.

    `ratios` multiply up to `efficiency`; `lost_in` is the one that takes most, null where little is.
    """

    size: int
    point: Point
    runs: int
    spread: float | None
    efficiency: float
    ratios: dict[str, float]

    @property
    def lost_in(self) -> str | None:
        """The factor that efficiency is lost by most."""
        name = min(self.ratios, key=self.ratios.__getitem__)
        return name if 1 - self.efficiency > MIN_LOSS_TO_NAME and self.ratios[name] < 1 else None

    @property
    def part(self) -> float:
        """What part of the loss that factor is, as logarithms add up."""
        name = self.lost_in
        return log(self.ratios[name]) / log(self.efficiency) if name else 0.0


@dataclass(frozen=True)
class Curve:
    """Runs of one system by size; `shards`: how many servers, where each number has a curve.

    `growth` is by what power of the number of ranks a rank's useful computation grows: 0 is weak
    scaling, -1 strong. `clear` is whether it is one of them.
    """

    system: str
    by: By
    kind: Kind
    shards: int | None
    rows: tuple[Row, ...]
    growth: float | None
    clear: bool
    forecasts: tuple[Forecast, ...] = ()


@dataclass(frozen=True)
class Scaling:
    """The curves of some runs, the largest system first."""

    curves: tuple[Curve, ...]

    @property
    def both(self) -> list[tuple[int, dict[str, Row]]]:
        """Sizes of which there are runs of several systems, with a row of each."""
        found: dict[int, dict[str, Row]] = defaultdict(dict)
        for curve in self.curves:
            for row in curve.rows:
                found[row.size].setdefault(curve.system, row)
        return [(size, rows) for size, rows in sorted(found.items()) if len(rows) > 1]


def curves(
    points: Sequence[Point],
    *,
    by: By | None = None,
    kind: Kind | None = None,
    at: Iterable[int] = (),
    replay: Callable[[Point], Replay] | None = None,
) -> Scaling:
    """Put runs into curves.

    Args:
        points: Runs of at least two sizes of one system.
        by: What they differ in; None = workers, unless all have as many.
        kind: Weak or strong scaling; None = as a rank's work grows.
        at: Numbers of workers to forecast.
        replay: Returns the replay of a run, by which runs with servers are forecast; None = by the
            sizes that are known.

    Raises:
        InvalidArgument: no system has two sizes, or a forecast is asked for that cannot be made.
    """
    by = by or ("workers" if len({one.workers for one in points}) > 1 else "shards")
    groups = [(key, group) for key, group in _groups(points, by).items() if _sizes(group, by) > 1]
    if not groups:
        sizes = fmt.series(sorted({str(getattr(one, by)) for one in points}) or ["no"])
        raise InvalidArgument(
            f"Found runs of {sizes} {by} and no system with two sizes: expected runs of one system "
            f"with different numbers of {by}."
        )
    found = [_curve(group, by, kind, shards) for (_, shards), group in groups]
    asked = sorted(set(at))
    if asked:
        found = [_with_forecasts(curve, asked, replay) for curve in found]
        _check(found, asked)
    return Scaling(tuple(sorted(found, key=lambda curve: -len(curve.rows))))


def _groups(points: Sequence[Point], by: By) -> dict[tuple[str, int | None], list[Point]]:
    """Divide runs by system, and those of one size that differ in servers by their number."""
    found: dict[tuple[str, int | None], list[Point]] = defaultdict(list)
    shards: dict[tuple[str, int], set[int]] = defaultdict(set)
    for one in points:
        shards[one.system, one.workers].add(one.shards)
    several = {system for (system, _), counts in shards.items() if len(counts) > 1}
    for one in points:
        apart = by == "workers" and one.system in several
        found[one.system, one.shards if apart else None].append(one)
    return found


def _sizes(points: Sequence[Point], by: By) -> int:
    return len({getattr(one, by) for one in points})


def _curve(points: Sequence[Point], by: By, kind: Kind | None, shards: int | None) -> Curve:
    groups: dict[int, list[Point]] = defaultdict(list)
    for one in points:
        groups[getattr(one, by)].append(one)
    middles = {size: _middle(groups[size]) for size in sorted(groups)}
    growth = _growth(list(middles.values())) if by == "workers" else None
    given: Kind = kind or ("strong" if growth is not None and growth < -1 / 2 else "weak")
    first = next(iter(middles.values()))
    return Curve(
        system=first.system,
        by=by,
        kind=given,
        shards=shards,
        rows=tuple(_row(size, one, groups[size], first, given) for size, one in middles.items()),
        growth=growth,
        clear=kind is not None
        or growth is None
        or abs(growth + 1 / 2) > MIN_DISTANCE_IF_KIND_CLEAR,
    )


def _middle(points: Sequence[Point]) -> Point:
    """Return the run with the median step of those of one size."""
    return sorted(points, key=lambda one: one.step_ns)[(len(points) - 1) // 2]


def _growth(points: Sequence[Point]) -> float:
    """Return the slope of useful computation by ranks, both as logarithms."""
    sizes = np.log([one.workers for one in points])
    return float(np.polyfit(sizes, np.log([one.useful_ns for one in points]), 1)[0])


def _row(size: int, one: Point, runs: Sequence[Point], first: Point, kind: Kind) -> Row:
    grown = one.workers / first.workers if kind == "strong" else 1.0
    ratios = {name: one.factors[name] / first.factors[name] for name in FACTORS}
    ratios["computation"] = first.useful_ns / (one.useful_ns * grown)
    steps = [run.step_ns for run in runs]
    return Row(
        size=size,
        point=one,
        runs=len(runs),
        spread=(max(steps) - min(steps)) / one.step_ns if len(steps) > 1 else None,
        efficiency=first.step_ns / (one.step_ns * grown),
        ratios=ratios,
    )


def _with_forecasts(
    curve: Curve, at: Sequence[int], replay: Callable[[Point], Replay] | None
) -> Curve:
    if curve.by != "workers":
        return curve
    points = [row.point for row in curve.rows]
    largest = points[-1]
    known = Sizes(
        *(np.array([float(getattr(one, name)) for one in points]) for name in _OF_FORECAST)
    )
    run = replay(largest) if replay and largest.shards and curve.kind == "weak" else None
    forecasts = [
        (run and forecast_by_replay(run, largest.workers, largest.step_ns, size))
        or forecast(known, size, strong=curve.kind == "strong")
        for size in at
    ]
    return replace(curve, forecasts=tuple(one for one in forecasts if one))


def _check(found: Sequence[Curve], asked: Sequence[int]) -> None:
    if any(curve.forecasts for curve in found):
        return
    most = max(len(curve.rows) for curve in found)
    raise InvalidArgument(
        f"Found runs of {most} sizes: a forecast for {fmt.series(list(map(str, asked)))} workers needs "
        "runs of one system with 4 numbers of workers, so that it can be tried on those that are known."
    )
