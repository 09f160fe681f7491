"""Events of very large runs are kept in a file, and are the same as in memory."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest
from polars.testing import assert_frame_equal
from support.runs.scenarios import HOT_SHARD, TWO_HOSTS

from tracelens import load
from tracelens.readers.native import assemble, spill
from tracelens.readers.native.spill import Spill
from tracelens.simulator.synthetic import Scenario, generate, write

if TYPE_CHECKING:
    import polars as pl


def frames() -> list[pl.DataFrame]:
    """Return what three processes recorded; the second has a column less."""
    parts = generate(TWO_HOSTS).events.collect().partition_by("process", maintain_order=True)[:3]
    return [parts[0], parts[1].drop("value"), parts[2]]


@pytest.mark.parametrize("in_memory", [0, 1500, 1 << 20])
def test_what_is_put_comes_back(in_memory: int) -> None:
    """Whether all frames are in the file, some of them, or none: rows, types and words are the same."""
    shelf = Spill(in_memory)
    for frame in frames():
        shelf.put(frame)
    found = list(shelf.frames())
    assert len(found) == 3
    for frame, back in zip(frames(), found, strict=True):
        assert_frame_equal(frame, back)


def test_where_there_is_no_room_memory_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be written to loses nothing."""

    def refuse(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    shelf = Spill(0)
    for frame in frames():
        shelf.put(frame)
    assert [frame.height for frame in shelf.frames()] == [frame.height for frame in frames()]


@pytest.mark.parametrize("scenario", [TWO_HOSTS, HOT_SHARD], ids=["two hosts", "shards"])
def test_a_trace_read_through_the_file_is_the_same(
    scenario: Scenario, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened with all events in the file, or with all in memory: events, steps and arrivals agree."""
    folder = tmp_path_factory.mktemp("trace")
    write(scenario, folder)
    usual = load.open(folder)
    monkeypatch.setattr(spill.Spill.__init__, "__defaults__", (0,))
    monkeypatch.setattr(assemble, "IN_MEMORY", 0)
    mapped = load.open(folder)
    assert_frame_equal(usual.events.collect(), mapped.events.collect())
    assert_frame_equal(usual.steps, mapped.steps)
    assert_frame_equal(usual.arrivals, mapped.arrivals)
