"""Several processes that claim one rank are never merged: one counts, and a note says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.runs.damage import RUN, VICTIM, rewritten, with_side, write_run

from tracelens import load

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
