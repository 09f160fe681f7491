"""Shards are measured from what they recorded, and the hot one stands out."""

import polars as pl
import pytest
from support.web.stores import SHARDED, sharded

from tracelens_dashboard.figures import shards
from tracelens_dashboard.theme import LIGHT


def test_bytes_and_requests_are_those_of_the_scenario() -> None:
    """Each shard received and answered its part of the gradient, from every worker in every step."""
    loads = sharded().run.shard_loads
    moved = [2 * size * SHARDED.ranks * SHARDED.steps for size in SHARDED.shard_bytes]
    assert loads["bytes"].to_list() == moved
    assert set(loads["requests"]) == {2 * SHARDED.ranks * SHARDED.steps}
    by_title = {measure.title: measure for measure in shards.scale_measures(loads)}
    assert by_title["requests"].value_by_shard.tolist() == loads["requests"].to_list()
    assert by_title["queue time<br>per request"].value_by_shard.argmax() == 0
    assert by_title["service time<br>per request"].unit_name == "ms"


def test_the_hot_shard_is_red_and_named() -> None:
    """Its dots lie beyond the mean, in the colour of loss; the sentence says how far."""
    drawing = shards.load(sharded().run.shard_loads, LIGHT, marked_shard=0)
    moved = drawing.figure.data[0]
    assert list(moved.marker.color) == [LIGHT.loss_colour, LIGHT.accent_colour, LIGHT.accent_colour]
    assert drawing.summary.startswith("Shard 0 carries 3.8 GiB, 2.2 times the mean of 3 shards")
    assert drawing.rows[0]["bytes moved (GiB)"] == pytest.approx(3.75)
    assert any(shape.fillcolor == LIGHT.loss_colour for shape in drawing.figure.layout.shapes)


def test_traffic_is_worker_by_shard() -> None:
    """The map has a row a worker and a column a shard, and says when workers are even."""
    drawing = shards.traffic(sharded().run.shard_traffic, LIGHT)
    trace = drawing.figure.data[0]
    assert (len(trace.y), len(trace.x)) == (SHARDED.ranks, SHARDED.shards)
    assert drawing.summary == "Traffic is balanced across workers."


def test_even_shards_are_said_to_be_even() -> None:
    """No shard is singled out where they carry the same."""
    loads = sharded().run.shard_loads.with_columns(bytes=pl.lit(1 << 20))
    assert shards.describe_load(loads) == "The 3 shards are balanced: 1.0 MiB each."


def test_a_shard_without_requests_is_drawn_at_zero() -> None:
    """Missing measures are zero, not a failure."""
    loads = sharded().run.shard_loads.with_columns(queue_ns=pl.lit(None, pl.Int64), bytes=pl.lit(0))
    assert shards.load(loads, LIGHT).summary == "Shard requests have no byte counts."
