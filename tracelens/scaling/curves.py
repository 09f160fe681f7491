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

By = Literal["workers", "shards"]
Kind = Literal["weak", "strong"]
# exponent of work per rank: weak and strong scaling cannot be told apart nearer to
# the middle [chosen]
MIN_DISTANCE_IF_KIND_CLEAR: Final = 0.25
# Attributes of `Point`, in the order of `Sizes`.
_OF_FORECAST: Final = (
    *("worker_count", "work_ns", "slowest_work_ns", "step_ns"),
    *("communication_ns", "hidden_communication_ns", "backprop_ns"),
)
MIN_LOSS_TO_NAME: Final = 0.01  # share of efficiency: a smaller loss gets no name [policy]


@dataclass(frozen=True)
class Row:
    """Runs with `process_count` workers or servers; `median_point` is that with the median step.

    `step_spread_share` is how far these runs' steps are apart, as a share of that step; None of a single
    run. The ratios to the smallest size multiply up to `efficiency`.
    """

    process_count: int
    median_point: Point
    run_count: int
    step_spread_share: float | None
    efficiency: float
    ratio_by_factor: dict[str, float]

    @property
    def main_loss_factor(self) -> str | None:
        """The factor that efficiency is lost by most; None where little is lost."""
        name = min(self.ratio_by_factor, key=self.ratio_by_factor.__getitem__)
        is_much = 1 - self.efficiency > MIN_LOSS_TO_NAME and self.ratio_by_factor[name] < 1
        return name if is_much else None

    @property
    def loss_share(self) -> float:
        """Share of the loss by `main_loss_factor`, as logarithms of ratios add up; 0 without one."""
        name = self.main_loss_factor
        return log(self.ratio_by_factor[name]) / log(self.efficiency) if name else 0.0


@dataclass(frozen=True)
class Curve:
    """Runs of one system by size; `shard_count`: how many servers, where each number has a curve.

    They are sorted by the number of processes of `size_role`, workers or servers (shards).
    `work_exponent` is by what power of the number of ranks a rank's useful computation grows: 0 is weak
    scaling, -1 strong; None by servers. `is_kind_clear` is true if it is near one of them.
    """

    system: str
    size_role: By
    scaling_kind: Kind
    shard_count: int | None
    rows: tuple[Row, ...]
    work_exponent: float | None
    is_kind_clear: bool
    forecasts: tuple[Forecast, ...] = ()


@dataclass(frozen=True)
class Scaling:
    """The curves of some runs, the largest system first."""

    curves: tuple[Curve, ...]

    @property
    def rows_by_shared_size(self) -> list[tuple[int, dict[str, Row]]]:
        """Sizes at which several systems were run, each with a row by system."""
        rows_by_size: dict[int, dict[str, Row]] = defaultdict(dict)
        for curve in self.curves:
            for row in curve.rows:
                rows_by_size[row.process_count].setdefault(curve.system, row)
        return [(size, rows) for size, rows in sorted(rows_by_size.items()) if len(rows) > 1]


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
    by = by or ("workers" if len({point.worker_count for point in points}) > 1 else "shards")
    comparable_groups = [
        (key, group)
        for key, group in _group_points(points, by).items()
        if _count_sizes(group, by) > 1
    ]
    if not comparable_groups:
        sizes = fmt.join_words(sorted({str(_get_size(point, by)) for point in points}) or ["no"])
        raise InvalidArgument(
            f"Found runs of {sizes} {by} and no system with two sizes: expected runs of one system "
            f"with different numbers of {by}."
        )
    made_curves = [_make_curve(group, by, kind, shards) for (_, shards), group in comparable_groups]
    sorted_sizes = sorted(set(at))
    if sorted_sizes:
        made_curves = [_add_forecasts(curve, sorted_sizes, replay) for curve in made_curves]
        _check_forecasts(made_curves, sorted_sizes)
    return Scaling(tuple(sorted(made_curves, key=lambda curve: -len(curve.rows))))


def _group_points(points: Sequence[Point], by: By) -> dict[tuple[str, int | None], list[Point]]:
    """Group runs by system; also by servers, if one size was run with different numbers of them."""
    groups: dict[tuple[str, int | None], list[Point]] = defaultdict(list)
    server_counts: dict[tuple[str, int], set[int]] = defaultdict(set)
    for point in points:
        server_counts[point.system, point.worker_count].add(point.shard_count)
    systems_to_split = {system for (system, _), counts in server_counts.items() if len(counts) > 1}
    for point in points:
        is_split = by == "workers" and point.system in systems_to_split
        groups[point.system, point.shard_count if is_split else None].append(point)
    return groups


def _count_sizes(points: Sequence[Point], by: By) -> int:
    return len({_get_size(point, by) for point in points})


def _get_size(point: Point, by: By) -> int:
    return point.worker_count if by == "workers" else point.shard_count


def _make_curve(points: Sequence[Point], by: By, kind: Kind | None, shards: int | None) -> Curve:
    """Make the curve of the runs of one system, a row per size, of its run with the median step."""
    runs: dict[int, list[Point]] = defaultdict(list)  # by size
    for point in points:
        runs[_get_size(point, by)].append(point)
    medians = {size: _find_median_point(runs[size]) for size in sorted(runs)}
    exponent = _fit_work_exponent(list(medians.values())) if by == "workers" else None
    is_strong = exponent is not None and exponent < -1 / 2
    assumed_kind: Kind = kind or ("strong" if is_strong else "weak")
    smallest = next(iter(medians.values()))
    return Curve(
        system=smallest.system,
        size_role=by,
        scaling_kind=assumed_kind,
        shard_count=shards,
        rows=tuple(
            _make_row(size, point, runs[size], smallest, assumed_kind)
            for size, point in medians.items()
        ),
        work_exponent=exponent,
        is_kind_clear=kind is not None
        or exponent is None
        or abs(exponent + 1 / 2) > MIN_DISTANCE_IF_KIND_CLEAR,
    )


def _find_median_point(points: Sequence[Point]) -> Point:
    """Return the run with the median step of those of one size."""
    return sorted(points, key=lambda point: point.step_ns)[(len(points) - 1) // 2]


def _fit_work_exponent(points: Sequence[Point]) -> float:
    """Return the power of the number of ranks by which a rank's useful computation grows."""
    log_workers = np.log([point.worker_count for point in points])
    return float(np.polyfit(log_workers, np.log([point.useful_ns for point in points]), 1)[0])


def _make_row(size: int, point: Point, points: Sequence[Point], smallest: Point, kind: Kind) -> Row:
    """Return the row of a size, relative to the `smallest`: `point` has the median step of `points`."""
    size_ratio = point.worker_count / smallest.worker_count if kind == "strong" else 1.0
    shares, smallest_shares = point.share_by_factor, smallest.share_by_factor
    ratios = {name: shares[name] / smallest_shares[name] for name in FACTORS}
    ratios["computation"] = smallest.useful_ns / (point.useful_ns * size_ratio)
    steps_ns = [run.step_ns for run in points]
    return Row(
        process_count=size,
        median_point=point,
        run_count=len(points),
        step_spread_share=(max(steps_ns) - min(steps_ns)) / point.step_ns
        if len(steps_ns) > 1
        else None,
        efficiency=smallest.step_ns / (point.step_ns * size_ratio),
        ratio_by_factor=ratios,
    )


def _add_forecasts(
    curve: Curve, workers: Sequence[int], replay: Callable[[Point], Replay] | None
) -> Curve:
    """Return a curve with a forecast for each number of workers, by replay if it has servers."""
    if curve.size_role != "workers":
        return curve
    points = [row.median_point for row in curve.rows]
    largest, is_strong = points[-1], curve.scaling_kind == "strong"
    columns = [[float(getattr(point, name)) for point in points] for name in _OF_FORECAST]
    sizes = Sizes(*map(np.array, columns))
    largest_run = replay(largest) if replay and largest.shard_count and not is_strong else None
    forecasts = []
    for count in workers:
        by_replay = None
        if largest_run:
            by_replay = forecast_by_replay(
                largest_run, largest.worker_count, largest.step_ns, count
            )
        forecasts.append(by_replay or forecast(sizes, count, is_strong_scaling=is_strong))
    return replace(curve, forecasts=tuple(filter(None, forecasts)))


def _check_forecasts(made_curves: Sequence[Curve], forecast_sizes: Sequence[int]) -> None:
    """Refuse sizes to forecast if no curve has a forecast."""
    if any(curve.forecasts for curve in made_curves):
        return
    size_count = max(len(curve.rows) for curve in made_curves)
    raise InvalidArgument(
        f"Found runs of {size_count} sizes: a forecast for "
        f"{fmt.join_words(list(map(str, forecast_sizes)))} workers needs runs of one system with 4 "
        "numbers of workers, so that it can be tried on those that are known."
    )
