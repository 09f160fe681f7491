"""The accuracy bench runs through, and its published tables are those of its published results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.accuracy import DOCS, FORMAT, PARTS, RUNS, measure
from benchmarks.labelled.endtoend import perform
from benchmarks.labelled.kept import Performer
from benchmarks.labelled.kinds import KINDS, Kind
from benchmarks.labelled.label import HEALTHY
from benchmarks.labelled.markdown import tables_of, with_tables
from benchmarks.labelled.setting import FIRST_SEED, LEVELS, RANKS, setting
from support.tiers import mark_slow

from tracelens.model.finding_kinds import KINDS as FINDINGS

LABELLED = Path(__file__).parents[1] / "benchmarks" / "labelled"


@pytest.fixture(scope="module")
def published() -> dict[str, object]:
    found: dict[str, object] = json.loads((DOCS / "accuracy.json").read_text())
    return found


def test_page_shows_the_published_results(published: dict[str, object]) -> None:
    """The tables are generated from the results in the same folder, never edited by hand."""
    page = (DOCS / "accuracy.md").read_text()
    assert with_tables(page, published) == page


def test_published_results_are_of_a_full_run(published: dict[str, object]) -> None:
    """Published seeds; every kind of run of every size and noise, often enough."""
    assert (published["format"], published["seeds"], published["quick"]) == (
        FORMAT,
        "published",
        False,
    )
    rows = published["kinds"]
    assert isinstance(rows, list)
    runs = {(row["kind"], row["ranks"], row["level"]): row["runs"] for row in rows}
    assert {*runs} == {
        (kind.name, ranks, level) for kind in KINDS for ranks in RANKS for level in LEVELS
    }
    assert all(found >= RUNS[ranks] for (_, ranks, _), found in runs.items())


@pytest.mark.slow
def test_quick_run_measures_every_part() -> None:
    """A short run fills every table: kinds of run by name, both levels of noise, all clocks."""
    results = measure(PARTS, "tuning", quick=True, performer=Performer(), only="healthy")
    assert {row["kind"] for row in results["kinds"]} == {
        kind.name for kind in KINDS if "healthy" in kind.name
    }
    assert {row["level"] for row in results["kinds"]} == set(LEVELS)
    assert all(row["runs"] == 1 for row in results["kinds"])
    assert sum(row["alarms"] for row in results["healthy"]) <= 1
    found = {row["slowdown"]: row["recall"] for row in results["recall"]}
    assert found[0.3] == 1.0
    equal = next(row for row in results["clocks"] if row["situation"] == "equal exits")
    assert equal["p99_us"] < 5
    assert "| healthy | none | 100 %" in tables_of(results)


@pytest.mark.parametrize("kind", mark_slow(KINDS, quick=KINDS[::6]), ids=lambda kind: kind.name)
def test_every_kind_can_be_made(kind: Kind) -> None:
    """With what is planted in it; whether that is found is what the bench measures."""
    case = kind.make(setting(8, "mild", "lognormal", FIRST_SEED["tuning"]))
    assert case.recording.events.height > 1_000
    assert case.label.verdict in {HEALTHY, *FINDINGS}


@pytest.mark.slow
def test_delays_that_others_hide_is_told() -> None:
    """Among 512 ranks in harsh noise a slow loader costs nothing, and is slow all the same."""
    (kind,) = (index for index, kind in enumerate(KINDS) if kind.name == "slow loader")
    outcome = perform((kind, 512, "harsh", "lognormal", 2001))
    assert (outcome["right"], outcome["truth"], outcome["covered"]) == (True, 0.0, True)


def test_seeds_for_tuning_are_never_published() -> None:
    """The ranges are further apart than any run of the bench is long."""
    assert FIRST_SEED["published"] - FIRST_SEED["tuning"] >= 1_000_000


def test_generator_shares_no_code_with_what_it_measures() -> None:
    """Only the border module knows the analyses; nothing knows the simulator."""
    for path in LABELLED.glob("*.py"):
        text = path.read_text()
        assert "tracelens.simulator" not in text
        imports = [line for line in text.splitlines() if line.startswith(("from", "import"))]
        analyses = [line for line in imports if "tracelens.analyses" in line]
        assert not analyses or path.name in {"judged.py", "endtoend.py"}, path.name
