"""Device times that come in records of their own find their spans."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.runs.segments import Slot, write_folder

from tracelens.conversion.segments import convert, decode
from tracelens.schema.record import TIMED_ON_DEVICE
from tracelens.schema.side import Definition, SideTables

SPAN = Definition(1, "forward", "forward")
DEVICE = Definition(2, "device times", "device", type="device")
COUNTER = Definition(3, "loss", "user", type="counter")
DEFINITIONS = (SPAN, DEVICE, COUNTER)
COLUMNS = ("device_start_ns", "device_duration_ns", "stream")


def span(number: int, start_ns: int = 10, **values: Any) -> Slot:
    request = TIMED_ON_DEVICE | number
    return Slot(start_ns=start_ns, end_ns=start_ns + 5, request=request, **values)


def times(number: int, begin_ns: int, length_ns: int, stream: int = 7) -> Slot:
    return Slot(
        start_ns=10,
        end_ns=10 + length_ns,
        nbytes=begin_ns,
        request=TIMED_ON_DEVICE | number,
        thread=stream,
        definition=2,
    )


def decode_slots(folder: Path, *slots: Slot) -> list[dict[str, Any]]:
    table, side = decode(write_folder(folder, slots, definitions=DEFINITIONS))
    assert side.dropped == {}
    return table.to_pylist()


def on_device(event: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(event[name] for name in COLUMNS)


def test_joined_in_any_order(tmp_path: Path) -> None:
    """Whatever lies between a span and its device times, and however many of both there are."""
    events = decode_slots(
        tmp_path, span(1, 10), span(2, 20), times(2, 200, 20), span(3, 30), times(1, 100, 0)
    )
    assert [event["start_ns"] for event in events] == [10, 20, 30]
    assert [on_device(event) for event in events] == [(100, 0, 7), (200, 20, 7), (None,) * 3]
    assert [event["request"] for event in events] == [None] * 3


@pytest.mark.parametrize("count", [1, 3, 50])
def test_each_span_finds_its_own(tmp_path: Path, count: int) -> None:
    """In any order of the readings; a span that was never timed has none."""
    numbers = list(range(1, count + 1))
    spans = [span(number, 10 * number) for number in [*numbers, count + 1]]
    known = [times(number, 1000 * number, number) for number in numbers]
    found = decode_slots(tmp_path, *spans, *sorted(known, key=lambda slot: slot.nbytes % 7))
    expected: list[tuple[Any, ...]] = [(1000 * number, number, 7) for number in numbers]
    assert [on_device(event) for event in found] == [*expected, (None,) * 3]


def test_across_segments_and_conversion(tmp_path: Path) -> None:
    """The record may be in a later segment; the file has the columns."""
    folder = write_folder(
        tmp_path, [span(1)], [times(1, 100, 9, stream=4)], definitions=DEFINITIONS
    )
    path = convert(folder)
    table = pa.ipc.open_file(str(path)).read_all()
    assert [on_device(event) for event in table.to_pylist()] == [(100, 9, 4)]
    assert SideTables.from_metadata(table.schema.metadata).complete


def test_requests_of_parameter_servers_stay(tmp_path: Path) -> None:
    """They do not have the mark, and so never name device times."""
    slot = Slot(start_ns=1, end_ns=2, request=5)
    (event,) = decode_slots(tmp_path, slot, times(5, 100, 10))
    assert event["request"] == 5
    assert on_device(event) == (None,) * 3


def test_a_counter_has_none(tmp_path: Path) -> None:
    """A value of a counter may look like a name of device times."""
    negative = TIMED_ON_DEVICE | 1  # the bits of -5e-324
    (event,) = decode_slots(
        tmp_path, Slot(start_ns=1, request=negative, definition=3), times(1, 100, 10)
    )
    assert event["value"] == -5e-324
    assert on_device(event) == (None,) * 3


@pytest.mark.parametrize(
    "torn",
    [
        Slot(start_ns=10, end_ns=0, nbytes=1, request=TIMED_ON_DEVICE | 1, definition=2),
        Slot(start_ns=10, end_ns=9, nbytes=1, request=TIMED_ON_DEVICE | 1, definition=2),
        Slot(start_ns=10, end_ns=20, nbytes=-1, request=TIMED_ON_DEVICE | 1, definition=2),
    ],
    ids=["still open", "ends before it begins", "no begin"],
)
def test_senseless_times_are_none(tmp_path: Path, torn: Slot) -> None:
    """What was cut off by a kill leaves the span as it is."""
    (event,) = decode_slots(tmp_path, span(1), torn)
    assert on_device(event) == (None,) * 3
