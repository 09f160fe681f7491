"""A recording may be read while it is made, and shows what is open at that moment."""

import os
from pathlib import Path

from support.launch.recording import read_one

import tracelens as tl
from tracelens.conversion.segments import is_live


def test_reading_does_not_disturb(trace: Path) -> None:
    """Open spans have no duration yet; read again later, they are closed."""
    outer, inner = tl.span("outer"), tl.span("inner")
    with tl.step(4), outer:
        with inner(nbytes=8):
            pass
        with inner:
            recorded = read_one(trace)
            assert is_live(recorded.path)
            found = [(e["name"], e["status"], e["depth"], e["step"]) for e in recorded.events]
            assert found == [
                ("step", "open", 0, 4),
                ("outer", "open", 1, 4),
                ("inner", "closed", 2, 4),
                ("inner", "open", 2, 4),
            ]
            assert not recorded.side.complete
    assert {event["status"] for event in read_one(trace).events} == {"closed"}
    tl.stop()
    assert len(read_one(trace).events) == 4


def test_what_is_there_before_the_first_event(trace: Path) -> None:
    """The process row and its clock readings are written at the start."""
    recorded = read_one(trace)
    assert recorded.events == []
    assert recorded.side.process.pid == os.getpid()
    assert [reading.method for reading in recorded.side.clocks] == ["local"]


def test_names_stand_before_their_first_use(trace: Path) -> None:
    """A handle's definition is in the file as soon as the handle is made."""
    tl.span("made just now", kind="update")
    names = {row.name: row.kind for row in read_one(trace).side.definitions}
    assert names["made just now"] == "update"
