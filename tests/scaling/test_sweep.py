"""Sweeps: combinations, what each means, maps of them, and what is refused before anything runs."""

import json
from pathlib import Path

import polars as pl
import pytest

from tracelens.cli import main
from tracelens.errors import InvalidArgument
from tracelens.scaling import heat_maps
from tracelens.scaling.sweep import Axis, Cell, make_scenarios, measure_cells, parse_axis

NT3 = Path("nt3")


def cell(*values: str, samples_per_s: float, workers: int = 1, shards: int = 0) -> Cell:
    """A measured run."""
    factors = {"load_balance": 0.9, "serialisation": 0.8, "transfer": 0.7}
    return Cell(values, workers, shards, 5e6, samples_per_s, 0.5, factors)


def test_a_sweep_has_every_combination_of_its_axes() -> None:
    """The last axis varies fastest; short names are aliases of scenario entries."""
    cells = make_scenarios(NT3, [parse_axis("workers=2,4"), parse_axis("network.latency_us=5,50")])
    assert [values for values, _ in cells] == [("2", "5"), ("2", "50"), ("4", "5"), ("4", "50")]
    assert [(made.ranks, made.latency_us) for _, made in cells[1:3]] == [(2, 50), (4, 5)]


def test_a_larger_batch_is_more_work() -> None:
    """Twice the samples, twice the compute of a step; the update is as long as before."""
    (_, of_20), (_, of_40) = make_scenarios(NT3, [parse_axis("batch=20,40")])
    assert (of_20.samples, of_40.samples) == (20, 40)
    assert of_40.backprop_ms == pytest.approx(2 * of_20.backprop_ms)
    assert of_40.update_ms == of_20.update_ms


def test_more_workers_have_a_higher_throughput() -> None:
    """More workers do more a second, and the numbers belong together."""
    axes = [parse_axis("workers=2,4")]
    two, four = measure_cells(make_scenarios(NT3, axes, ["run.steps=5"]))
    assert (two.worker_count, four.worker_count) == (2, 4)
    assert 1.5 < four.samples_per_s / two.samples_per_s < 2.05
    shares = (
        four.share_by_factor["load_balance"]
        * four.share_by_factor["serialisation"]
        * four.share_by_factor["transfer"]
    )
    assert shares == pytest.approx(four.efficiency)


def test_the_last_two_axes_span_each_map() -> None:
    """The last two axes are down and across, the others have a map each; blocks show how much."""
    axes = [Axis("a", ("x", "y")), Axis("workers", ("1", "2")), Axis("ps", ("1", "2"))]
    cells = [
        cell(a, w, p, samples_per_s=100 * i, workers=int(w), shards=int(p))
        for i, (a, w, p) in enumerate([(a, w, p) for a in "xy" for w in "12" for p in "12"], 1)
    ]
    text = heat_maps.to_text(cells, axes, "throughput")
    assert text.index("\na x\n") < text.index("\na y\n")
    assert "100 ▁" in text
    assert "800 █" in text
    page = heat_maps.to_html(cells, axes, "throughput", "<script>")
    assert page.count("<table>") == 2
    assert "<script>" not in page
    read = json.loads(heat_maps.to_json(cells, axes))
    assert read["runs"][-1]["a"] == "y"
    assert read["runs"][-1]["ps"] == 2
    assert read["runs"][-1]["throughput"] == 800


def test_the_smallest_that_does_nearly_as_much() -> None:
    """It is named next to the best."""
    axes = [Axis("workers", ("8", "32"))]
    cells = [cell("8", samples_per_s=97, workers=8), cell("32", samples_per_s=100, workers=32)]
    assert heat_maps.write_headline(cells, axes).endswith("workers 8 does 97 % of it.")


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (["workers"], "expected NAME=VALUE"),
        (["speed=1,2"], "expected NAME=VALUE"),
        (["workers=2", "run.workers=4"], "twice"),
        (["workers=0,2"], "With run.workers=0: Found run.workers = 0"),
        (["batch=0"], "number of samples above 0"),
        (["network.colour=1"], "which there is not"),
        (
            [
                f"run.seed={','.join(map(str, range(100)))}",
                f"workers={','.join(map(str, range(1, 99)))}",
            ],
            "9,800 combinations",
        ),
    ],
)
def test_a_wrong_sweep_is_refused_before_it_runs(over: list[str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make_scenarios(NT3, [parse_axis(text) for text in over])


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A map, a page and a table; a file that cannot be written ends it before it begins."""
    options = [
        "sweep",
        "nt3",
        "--set",
        "run.steps=4",
        "--over",
        "workers=2,3",
        "--executor",
        "threads",
    ]
    table, page = tmp_path / "runs.parquet", tmp_path / "map.html"
    assert main([*options, "--save", str(table), "--html", str(page)]) == 0
    assert "samples a second" in capsys.readouterr().out
    assert pl.read_parquet(table)["workers"].to_list() == [2, 3]
    assert "Sweep of nt3" in page.read_text()
    assert main([*options, "--html", str(tmp_path / "no" / "map.html")]) == 2
    assert "folder that exists" in capsys.readouterr().err
