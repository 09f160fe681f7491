"""A process that recorded nothing is named, and a trace of nothing but those is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.runs.damage import RUN, VICTIM, own_time, rewritten, write_run
from support.runs.segments import write_folder

from tracelens import load
from tracelens.conversion.segments import convert
from tracelens.errors import EmptyTrace
from tracelens.schema.side import format_dropped_line
from tracelens.schema.vocabulary import NO_ROOM, SIDE_FILE
from tracelens.simulator.synthetic import write

if TYPE_CHECKING:
    from pathlib import Path


def test_one_rank_without_events(tmp_path: Path) -> None:
    """The rank is listed without steps; the other ranks' times are unchanged."""
    victim = write_run(tmp_path)
    sound_trace = load.open(tmp_path)
    rewritten(victim, lambda table: table.slice(0, 0))
    trace = load.open(tmp_path)
    assert [note.sentence for note in trace.notes] == [f"'{VICTIM}' holds no events."]
    assert trace.workers["rank"].to_list() == [0, 1, 2]
    assert set(trace.steps["rank"]) == {0, 2}
    for rank in (0, 2):
        assert own_time(trace, rank).equals(own_time(sound_trace, rank))


def test_no_events_at_all(tmp_path: Path) -> None:
    """Nothing to analyze: said in one sentence."""
    write(RUN, tmp_path)
    for path in tmp_path.iterdir():
        rewritten(path, lambda table: table.slice(0, 0))
    with pytest.raises(EmptyTrace, match="3 recorded processes, but not one event: check"):
        load.open(tmp_path)


@pytest.mark.parametrize("ended", [True, False], ids=["converted", "segments"])
def test_no_room_from_the_beginning(ended: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    """The cause is named, with how much was lost, and what to do."""
    segments_folder = write_folder(tmp_path, [])
    with (segments_folder / SIDE_FILE).open("ab") as side:
        side.write(format_dropped_line(NO_ROOM, 4200))
    if ended:
        convert(segments_folder)
    with pytest.raises(EmptyTrace, match=r"the disk was full .*\(4,200 events lost.*--out\.$"):
        load.open(tmp_path)
