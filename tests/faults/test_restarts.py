"""Several processes that claim one rank are never merged: one counts, and a note says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.runs.damage import RUN, VICTIM, rewritten, with_side, write_run

from tracelens import cli, load
from tracelens.cli.info import describe
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def claimed(path: Path, copy: Path, **changes: Any) -> None:
    """Copy a file as if another process had written it."""
    copy.write_bytes(path.read_bytes())

    def change(table: pa.Table) -> pa.Table:
        return with_side(table, lambda side: side["process"].update(changes))

    rewritten(copy, change)


def test_the_later_incarnation_of_a_rank_counts(tmp_path: Path) -> None:
    """The later incarnation counts; the earlier one is kept apart, with a note."""
    victim = write_run(tmp_path)
    earlier = tmp_path / "worker-00001-77.arrow"
    claimed(victim, earlier, pid=77, incarnation=5)
    trace = load.open(tmp_path)
    assert trace.workers["pid"].to_list() == [1000, 1001, 1002]
    assert trace.processes.height == 4
    assert trace.steps.height == RUN.ranks * RUN.steps
    (note,) = trace.notes
    assert note.kind == "restarted"
    assert "Rank 1 was recorded 2 times" in note.sentence
    assert "process 1001" in note.sentence


def restart_with_two(folder: Path) -> None:
    """Write a run of three ranks, and then one of ranks 0 and 1 alone."""
    victim = write_run(folder)
    for rank in (0, 1):
        file = victim.with_name(f"worker-{rank:05}-{1000 + rank}.arrow")
        later = {"pid": 2000 + rank, "incarnation": 2**62, "world": 2}
        claimed(file, victim.with_name(f"worker-{rank:05}-{2000 + rank}.arrow"), **later)

        def forget_rank_2(table: pa.Table) -> pa.Table:
            return with_side(table, lambda side: side["communicators"].clear())

        rewritten(victim.with_name(f"worker-{rank:05}-{2000 + rank}.arrow"), forget_rank_2)


def test_the_report_is_about_the_ranks_of_the_last_attempt(tmp_path: Path) -> None:
    """A rank without which the job was started again is kept apart, and it is not missing."""
    restart_with_two(tmp_path)
    trace = load.open(tmp_path)
    assert trace.workers["pid"].to_list() == [2000, 2001]
    assert trace.expected_ranks == 2
    assert "Rank 2 ended before the job was started again without it" in trace.notes[-1].sentence
    kinds = {finding.kind for finding in analyze(trace).findings}
    assert not kinds & {"world_change", "missing_rank"}


def test_steps_of_all_attempts_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restart_with_two(tmp_path)
    assert cli.main(["info", str(tmp_path), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["processes"]
    assert [row["steps"] for row in rows] == [RUN.steps] * 5
    assert [row["steps"] for row in describe(load.open(tmp_path))["processes"]] == [RUN.steps] * 5


def test_a_child_of_a_rank_never_counts_as_the_rank(tmp_path: Path) -> None:
    """A process that a rank spawned never counts as the rank, even if it is later and busier."""
    victim = write_run(tmp_path)
    claimed(
        victim,
        tmp_path / "worker-00001-9999.arrow",
        pid=9999,
        parent_rank_pid=1001,
        incarnation=2**62,
    )
    trace = load.open(tmp_path)
    assert trace.notes == ()
    assert trace.workers["pid"].to_list() == [1000, 1001, 1002]


def test_helper_without_steps(tmp_path: Path) -> None:
    """A later process of a rank that ran no step does not take its place."""
    victim = write_run(tmp_path)
    helper = tmp_path / "worker-00001-5555.arrow"
    claimed(victim, helper, pid=5555, incarnation=2**62)
    rewritten(helper, lambda table: table.slice(1, 1))
    trace = load.open(tmp_path)
    assert trace.workers["pid"].to_list() == [1000, 1001, 1002]
    assert (tmp_path / VICTIM).exists()
