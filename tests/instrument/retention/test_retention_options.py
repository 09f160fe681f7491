"""What is to be kept can be said in the call, on the command line and by the environment, alike."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.launch.record import run_record
from support.launch.recording import read_all, read_one, run_child

import tracelens as tl
from tracelens.errors import InvalidArgument
from tracelens.schema.side import Retention
from tracelens_instrument.retention import policy

GIB = 1 << 30
ALL = Retention(detail="phase")


@pytest.mark.parametrize(
    ("keep", "found"),
    [
        (None, ALL),
        ("all", ALL),
        ("last:200", replace(ALL, last=200)),
        ("every:50", replace(ALL, every=50, burst=1)),
        ("every:1000:5", replace(ALL, every=1000, burst=5)),
    ],
)
def test_each_form_of_keep_is_parsed(keep: str | None, found: Retention) -> None:
    """Every form of the option is parsed, and its text gives the same retention again."""
    assert policy.parse(keep) == found


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (None, None),
        (5_000_000, 5_000_000),
        ("5000000", 5_000_000),
        ("500MB", 500_000_000),
        ("4GB", 4 * 10**9),
        ("4 gb", 4 * 10**9),
        ("2GiB", 2 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        ("1T", 10**12),
    ],
)
def test_a_budget_is_parsed_with_its_unit(budget: int | str | None, size: int | None) -> None:
    """Bytes, as a number or as people write them."""
    assert policy.parse(budget=budget).budget_bytes == size


KEEP = [
    "",
    "last",
    "last:0",
    "last:-1",
    "last:x",
    "every:0",
    "every:3:4",
    "every:3:0",
    "ALL",
    7,
    True,
]
BUDGET = [0, -1, 999_999, 2**63, 1.5e9, True, "", "4PB", "much", "GB", "1e9", b"4GB"]


@pytest.mark.parametrize(
    "given", [{"keep": keep} for keep in KEEP] + [{"budget": budget} for budget in BUDGET]
)
def test_nonsense_in_a_call_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    """By a sentence that says what can be said, and before anything is recorded."""
    (name,) = given
    with pytest.raises(InvalidArgument, match=f"^{name} is .*, expected "):
        tl.start(tmp_path / "t", **given)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("variable", "text"), [("TRACELENS_KEEP", "lots"), ("TRACELENS_BUDGET", "little")]
)
def test_nonsense_in_the_environment_keeps_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    """One warning, and the training and its recording go on."""
    monkeypatch.setenv(variable, text)
    with pytest.warns(RuntimeWarning, match=f"{variable} is passed over") as warned:
        tl.start(tmp_path)
    assert len(warned) == 1
    tl.stop()
    assert read_one(tmp_path).side.retention == ALL


def test_call_wins_over_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the call leaves open comes from the environment; a reader sees what held."""
    monkeypatch.setenv("TRACELENS_KEEP", "every:9")
    monkeypatch.setenv("TRACELENS_BUDGET", "2MB")
    tl.start(tmp_path, keep="last:3")
    assert read_one(tmp_path).side.retention == replace(ALL, last=3, budget_bytes=2_000_000)
    tl.stop()
    assert read_one(tmp_path).side.retention == replace(ALL, last=3, budget_bytes=2_000_000)
    assert os.environ["TRACELENS_KEEP"] == "every:9"


def test_second_start_changes_nothing(tmp_path: Path) -> None:
    """And says so if it was asked for something else."""
    tl.start(tmp_path, keep="last:3", budget="2MB")
    tl.start(tmp_path)
    with pytest.warns(
        RuntimeWarning, match=r"keep last:4 .* already keeps last:3 within 2,000,000"
    ):
        tl.start(tmp_path, keep="last:4")
    tl.stop()
    assert read_one(tmp_path).side.retention.last == 3


CHILDREN = """
import multiprocessing, os, sys
import tracelens as tl
def work():
    tl.instant("there")
if __name__ == "__main__":
    tl.start(sys.argv[1], keep="every:10:2", budget="7MB")
    tl.instant("there")
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.end_to_end
@pytest.mark.slow
def test_children_keep_as_their_parent(tmp_path: Path) -> None:
    """Forked or spawned, as they record to the same folder."""
    (tmp_path / "program.py").write_text(CHILDREN)
    run_child("import runpy; runpy.run_path('program.py', run_name='__main__')", tmp_path / "t")
    assert [one.side.retention for one in read_all(tmp_path / "t")] == [
        replace(ALL, every=10, burst=2, budget_bytes=7_000_000)
    ] * 3


@pytest.mark.limits_memory
@pytest.mark.end_to_end
@pytest.mark.slow
def test_record_passes_options_on_and_refuses_wrong_ones(tmp_path: Path) -> None:
    """`tracelens record` hands it on, and refuses nonsense before it runs anything."""
    command = ("--", sys.executable, "-c", "import tracelens as tl; tl.instant('there')")
    run_record(
        "--no-verdict", "--out", tmp_path / "t", "--keep", "last:5", "--budget", "3MB", *command
    )
    assert read_one(tmp_path / "t").side.retention == replace(ALL, last=5, budget_bytes=3_000_000)
    refused = run_record("--out", tmp_path / "no", "--keep", "some", *command)
    assert refused.returncode == 2
    assert "keep is 'some', expected all, last:N" in refused.stderr
    assert not (tmp_path / "no").exists()
