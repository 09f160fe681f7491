"""A process that recorded nothing is named, and a trace of nothing but those is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.runs.damage import RUN, VICTIM, own_time, rewritten, written

from tracelens import load
from tracelens.errors import EmptyTrace
from tracelens.simulator.synthetic import write

if TYPE_CHECKING:
    from pathlib import Path


def test_one_rank_without_events(tmp_path: Path) -> None:
    """The rank is there, without steps; the others' own work is unchanged."""
    victim = written(tmp_path)
    before = load.open(tmp_path)
    rewritten(victim, lambda table: table.slice(0, 0))
    trace = load.open(tmp_path)
    assert [note.sentence for note in trace.notes] == [f"'{VICTIM}' holds no events."]
    assert trace.workers["rank"].to_list() == [0, 1, 2]
    assert set(trace.steps["rank"]) == {0, 2}
    for rank in (0, 2):
        assert own_time(trace, rank).equals(own_time(before, rank))


def test_no_events_at_all(tmp_path: Path) -> None:
    """Nothing to analyze: said in one sentence."""
    write(RUN, tmp_path)
    for path in tmp_path.iterdir():
        rewritten(path, lambda table: table.slice(0, 0))
    with pytest.raises(EmptyTrace, match="3 recorded processes, but not one event"):
        load.open(tmp_path)
