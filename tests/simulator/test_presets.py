"""The presets say where their numbers come from, and give what docs/simulate.md says of them."""

from pathlib import Path
from typing import Any

import pytest

from tracelens.placement import sum_shard_bytes
from tracelens.simulator import scenario_file, synthetic
from tracelens.simulator.scenario import Scenario
from tracelens.simulator.scenario_file import PRESETS, SOURCES, load, load_preset, read_sources


def step_s(scenario: Scenario) -> float:
    """Return the mean length of a simulated step."""
    return synthetic.duration_ns(scenario) / scenario.steps / 1e9


def quiet_scenario(name: str, *changes: str) -> Scenario:
    quiet = ("compute.noise=0", "compute.spread=0", "run.steps=2")
    return load(Path(name), (*quiet, *changes))


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_has_a_source(name: str) -> None:
    """Each entry that holds a number, and no other, is tagged with one of three words."""
    numbers = {
        f"{table}.{key}"
        for table, held in load_preset(name).items()
        if isinstance(held, dict) and table != "sources"
        for key, value in held.items()
        if not isinstance(value, bool | str)
    }
    assert set(read_sources(name)) == numbers
    assert set(read_sources(name).values()) <= set(SOURCES)


@pytest.mark.parametrize(("workers", "shards", "efficiency"), [(128, 32, 0.783), (64, 32, 0.998)])
def test_resnet50_gives_what_its_model_gave(workers: int, shards: int, efficiency: float) -> None:
    """Two rows of the event model of a prototype, with which this one shares no code."""
    scenario = quiet_scenario("resnet50", f"run.workers={workers}", f"servers.shards={shards}")
    assert 2.0 / step_s(scenario) == pytest.approx(efficiency, abs=0.002)


def test_resnet50_at_full_size_is_bound_by_its_largest_tensor() -> None:
    """23.0 % at 512/64: two transfers of 9.4 MB for each worker, hardly hidden."""
    scenario = quiet_scenario("resnet50", "run.steps=1")
    held = sum_shard_bytes(scenario.pieces, scenario.shards)
    assert max(held) / (sum(held) / len(held)) == pytest.approx(5.91, abs=0.01)
    assert 2.0 / step_s(scenario) == pytest.approx(0.230, abs=0.001)


def test_chunks_spread_the_load() -> None:
    """With 64 workers and 16 servers 99.8 % instead of 94.0 %."""
    sizes = ("run.workers=64", "servers.shards=16", "run.steps=1")
    assert 2.0 / step_s(quiet_scenario("resnet50", *sizes)) == pytest.approx(0.940, abs=0.001)
    chunked = quiet_scenario("resnet50", *sizes, "servers.placement=chunked")
    assert 2.0 / step_s(chunked) == pytest.approx(0.998, abs=0.001)


def test_incast_is_a_switch_of_its_own() -> None:
    """The same bytes take longer the more workers send in parallel."""
    sizes = ("run.workers=32", "servers.shards=8")
    without = step_s(quiet_scenario("resnet50", *sizes))
    assert step_s(quiet_scenario("resnet50", *sizes, "servers.incast=0.05")) > 1.3 * without


@pytest.mark.parametrize(
    ("name", "changes", "seconds"),
    [
        ("hepcnn", (), 1.351),
        ("alexnet", (), 0.327),
        ("nt3", (), 2.416),
        ("nt3", ("network.gbytes_per_s=0.6",), 2.856),
    ],
)
def test_the_others_last_as_the_page_says(
    name: str, changes: tuple[str, ...], seconds: float
) -> None:
    assert step_s(quiet_scenario(name, *changes)) == pytest.approx(seconds, rel=0.005)


@pytest.mark.parametrize("table", scenario_file.ENTRIES)
def test_every_entry_is_described(table: str) -> None:
    """docs/simulate.md names each entry."""
    page = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    missing: list[Any] = [key for key in scenario_file.ENTRIES[table] if f"`{key}`" not in page]
    assert missing == []
