"""Runs of several sizes: efficiency, factors that multiply up to it, and which system is faster."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InvalidArgument
from tracelens.scaling import Curve, Point, curves
from tracelens.scaling.formats import SCALINGS
from tracelens.scaling.points import FACTORS

MS = 1e6


def point(
    workers: int, step_ms: float, useful_ms: float, shards: int = 0, **factors: float
) -> Point:
    """A run whose factors multiply up to useful / step; transfer is what the others leave."""
    all_factors = {"load_balance": 1.0, "serialisation": 1.0} | factors
    transfer = useful_ms / step_ms / all_factors["load_balance"] / all_factors["serialisation"]
    return Point(
        name=f"{workers} workers",
        worker_count=workers,
        shard_count=shards,
        step_count=50,
        step_ns=step_ms * MS,
        useful_ns=useful_ms * MS,
        work_ns=useful_ms * MS,
        slowest_work_ns=useful_ms * MS,
        communication_ns=0.0,
        hidden_communication_ns=0.0,
        backprop_ns=0.0,
        share_by_factor=all_factors | {"transfer": transfer},
    )


def single_curve(points: list[Point], **options: object) -> Curve:
    """The one curve of some runs."""
    (curve,) = curves(points, **options).curves  # type: ignore[arg-type]
    return curve


def test_efficiency_of_weak_scaling() -> None:
    """Ranks keep their work: a step twice as long is half as efficient, and transfer took it."""
    curve = single_curve([point(8, 20, 9), point(2, 10, 9)])
    assert curve.scaling_kind == "weak"
    assert curve.is_kind_clear
    assert [row.process_count for row in curve.rows] == [2, 8]
    assert curve.rows[-1].efficiency == pytest.approx(0.5)
    assert curve.rows[-1].main_loss_factor == "transfer"
    assert curve.rows[-1].loss_share == pytest.approx(1)


def test_efficiency_of_strong_scaling() -> None:
    """Four times the ranks with a quarter of the work each, in half the time."""
    curve = single_curve([point(2, 12, 12), point(8, 6, 3)])
    assert curve.scaling_kind == "strong"
    assert curve.rows[-1].efficiency == pytest.approx(0.5)
    assert curve.rows[-1].ratio_by_factor["computation"] == pytest.approx(1)


def test_what_is_between_is_not_clear() -> None:
    """Work that halves over four times the ranks is neither; who says which is believed."""
    points = [point(2, 10, 8), point(8, 10, 4)]
    assert not single_curve(points).is_kind_clear
    assert single_curve(points, kind="strong").is_kind_clear
    text = SCALINGS["text"](curves(points))
    assert "say --weak or --strong" in " ".join(text.split())


@given(
    st.lists(
        st.tuples(
            st.integers(1, 512),
            st.floats(1, 1000),
            st.floats(0.05, 1),
            st.floats(0.2, 1),
            st.floats(0.2, 1),
        ),
        min_size=2,
        max_size=8,
        unique_by=lambda one: one[0],
    )
)
def test_ratios_multiply_up(sizes: list[tuple[int, float, float, float, float]]) -> None:
    """Whatever the runs, factors are all of the efficiency, of both kinds."""
    points = [
        point(workers, step, step * share, load_balance=balance, serialisation=serial)
        for workers, step, share, balance, serial in sizes
    ]
    for kind in ("weak", "strong"):
        for row in single_curve(points, kind=kind).rows:
            assert prod(row.ratio_by_factor.values()) == pytest.approx(row.efficiency)


def test_several_runs_of_a_size() -> None:
    """The median one is shown, and how far they are apart."""
    runs = [point(2, 10, 9), point(4, 14, 9), point(4, 12, 9), point(4, 13, 9)]
    row = single_curve(runs).rows[-1]
    assert row.median_point.step_ns == 13 * MS
    assert row.run_count == 3
    assert row.step_spread_share == pytest.approx(2 / 13)


def test_systems_side_by_side() -> None:
    """Parameter servers and collectives are curves of their own, compared where both were run."""
    servers = [point(2, 10, 5, shards=1), point(4, 30, 5, shards=1), point(8, 60, 5, shards=1)]
    scaling = curves([*servers, point(2, 20, 5), point(4, 20, 5)])
    assert [curve.system for curve in scaling.curves] == ["parameter servers", "collectives"]
    assert [size for size, _ in scaling.rows_by_shared_size] == [2, 4]
    text = SCALINGS["text"](scaling)
    assert "parameter servers, 2 x" in text
    assert "collectives, 1.5 x" in text


def test_each_number_of_servers_has_a_curve() -> None:
    """As many workers with fewer servers is another curve; or it is a curve by servers."""
    sizes = {(2, 2): 10, (4, 2): 12, (4, 4): 8, (8, 4): 9}
    points = [point(w, step, 5, shards=s) for (w, s), step in sizes.items()]
    assert [curve.shard_count for curve in curves(points).curves] == [2, 4]
    by_shards = single_curve([point(4, 12, 5, shards=2), point(4, 8, 5, shards=4)])
    assert by_shards.size_role == "shards"
    assert by_shards.rows[-1].efficiency == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("points", "options", "words"),
    [
        ([point(2, 10, 9), point(2, 11, 9)], {}, "no system with two sizes"),
        ([point(2, 10, 9), point(4, 11, 9, shards=1)], {}, "no system with two sizes"),
        ([point(2, 10, 9), point(4, 11, 9)], {"at": [64]}, "4 numbers of workers"),
    ],
)
def test_what_cannot_be_said(
    points: list[Point], options: dict[str, list[int]], words: str
) -> None:
    """One sentence with what was found and what is needed."""
    with pytest.raises(InvalidArgument, match=words):
        curves(points, **options)  # type: ignore[arg-type]


def test_factors_have_titles() -> None:
    found = curves([point(2, 10, 9), point(4, 11, 9)])
    written = SCALINGS["markdown"](found)
    assert all(name.replace("_", " ") in written for name in (*FACTORS, "computation"))
