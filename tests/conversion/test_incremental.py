"""Converted piece by piece while it is recorded, killed at any point, a recording stays what it is."""

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.runs.segments import Slot, header, write_folder
from support.tiers import mark_slow

from tracelens.conversion import incremental
from tracelens.conversion.arrow_file import GrowingFile
from tracelens.conversion.incremental import IncrementalConversion
from tracelens.conversion.segments import convert, decode
from tracelens.schema.record import END, END_OFFSET, RECORD_BYTES
from tracelens.schema.side import Definition, SideTables
from tracelens.schema.vocabulary import UNFINISHED_FILE

SLOTS = 8
DEFINITIONS = (
    Definition(1, "piece", "user"),
    Definition(2, "long", "user"),
    Definition(3, "moment", "user", type="instant"),
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental, "CHUNK", 2)
    monkeypatch.setattr(incremental, "AHEAD", 1)


@dataclass
class Recorder:
    """Writes segments as the recorder does: slots in order, ends wherever they are."""

    folder: Path
    draw: random.Random
    now: int = 1000
    number: int = 0
    used: int = 0
    open: list[tuple[Path, int]] = field(default_factory=list)
    free: list[tuple[Path, int]] = field(default_factory=list)

    def put(self, slot: Slot) -> tuple[Path, int]:
        path = self.folder / f"{self.number:06d}.seg"
        if not path.exists():
            path.write_bytes(header() + bytes(SLOTS * RECORD_BYTES))
        slot_address = path, RECORD_BYTES * (1 + self.used)
        self.write(slot_address, slot.pack())
        self.used += 1
        if self.used == SLOTS:
            self.number, self.used = self.number + 1, 0
        return slot_address

    def write(self, slot_address: tuple[Path, int], content: bytes) -> None:
        path, offset = slot_address
        if path.exists():  # else it was removed, which a mapping does not notice
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(content)

    def tick(self) -> int:
        self.now += self.draw.randint(1, 9)
        return self.now

    def do_something(self) -> None:
        chance = self.draw.random()
        start = self.tick()
        thread = self.draw.randint(0, 1)
        if chance < 0.15:
            self.open.append(self.put(Slot(start_ns=start, definition=2, thread=thread)))
        elif chance < 0.3 and self.open:
            slot_address = self.open.pop(self.draw.randrange(len(self.open)))
            self.write((slot_address[0], slot_address[1] + END_OFFSET), END.pack(self.tick()))
        elif chance < 0.4:
            self.put(Slot(start_ns=start, definition=3, thread=thread))
        elif chance < 0.45:
            self.put(Slot(start_ns=max(1, start - 60), end_ns=start - 5, thread=thread))
        elif chance < 0.46:
            self.free.append(self.put(Slot(definition=0)))
        elif chance < 0.5 and self.free:  # whoever took it was slow to write
            self.write(self.free.pop(), Slot(start_ns=start, end_ns=self.tick()).pack())
        else:
            self.put(Slot(start_ns=start, end_ns=self.tick(), thread=thread))


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows in an order that does not depend on how they were converted."""
    found = table.drop_columns("depth").to_pylist()
    return sorted(found, key=repr)


@pytest.mark.parametrize("seed", mark_slow(range(6), (0, 1)))
def test_the_same_as_in_one_piece(tmp_path: Path, seed: int) -> None:
    """Every event occurs once, with its end, for any interruption and any reader meanwhile."""
    draw = random.Random(seed)
    live = write_folder(tmp_path / "live", definitions=DEFINITIONS)
    twin = write_folder(tmp_path / "twin", definitions=DEFINITIONS)
    recorder, twin_recorder = (Recorder(folder, random.Random(seed)) for folder in (live, twin))
    converted = 0
    for _ in range(25):
        for _ in range(draw.randint(1, 25)):
            recorder.do_something()
            twin_recorder.do_something()
        with IncrementalConversion(live) as conversion:
            while draw.random() < 0.8 and conversion.advance(recorder.number):
                converted += 1
        assert rows(decode(live)[0]) == rows(decode(twin)[0])
    assert converted > 5
    assert len(list(live.glob("*.seg"))) < len(list(twin.glob("*.seg")))
    expected, side = decode(twin)
    table, side_of_file = read_file(convert(live))
    assert not live.exists()
    assert rows(table) == rows(expected)
    assert (side_of_file.dropped, replace(side_of_file, definitions=()).process) == (
        side.dropped,
        side.process,
    )


def read_file(path: Path) -> tuple[pa.Table, SideTables]:
    table = pa.ipc.open_file(str(path)).read_all()
    return table.drop_columns(["rank", "process"]), SideTables.from_metadata(table.schema.metadata)


class Killed(BaseException):
    """Stands for a SIGKILL."""


@pytest.mark.parametrize("point", ["append_batch", "sync", "save_progress", "_remove_converted"])
def test_killed_at_each_point(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill before or after any of its operations loses and doubles no event."""
    live = write_folder(tmp_path / "live", definitions=DEFINITIONS)
    recorder = Recorder(live, random.Random(7))
    for _ in range(300):
        recorder.do_something()
    shutil.copytree(live, twin := tmp_path / "twin" / live.name)
    expected = rows(decode(twin)[0])
    for moment in ("before", "after"):
        owner: Any = incremental if point == "save_progress" else None
        owner = owner or (IncrementalConversion if point == "_remove_converted" else GrowingFile)
        real = getattr(owner, point)
        calls = iter(range(100))

        def killing(
            *arguments: Any, real: Any = real, calls: Any = calls, moment: str = moment
        ) -> Any:
            third = next(calls) == 2
            if third and moment == "before":
                raise Killed
            result = real(*arguments)
            if third:
                raise Killed
            return result

        with monkeypatch.context() as patch, pytest.raises(Killed):  # noqa: PT012 - the loop is it
            patch.setattr(owner, point, killing)
            with IncrementalConversion(live) as conversion:
                while conversion.advance(recorder.number):
                    pass
        assert rows(decode(live)[0]) == expected
    assert rows(read_file(convert(live))[0]) == expected


def test_segments_stay_while_a_span_is_open(tmp_path: Path) -> None:
    """And go when it has ended; until then the file holds all but that span."""
    live = write_folder(tmp_path, definitions=DEFINITIONS)
    recorder = Recorder(live, random.Random(0))
    slot_address = recorder.put(Slot(start_ns=5, definition=2))
    for number in range(10 * SLOTS):
        recorder.put(Slot(start_ns=10 + 2 * number, end_ns=11 + 2 * number))
    with IncrementalConversion(live) as conversion:
        while conversion.advance(recorder.number):
            pass
        assert "000000.seg" in [path.name for path in live.glob("*.seg")]
        assert decode(live)[0]["status"].to_pylist().count("open") == 1
        recorder.write((slot_address[0], slot_address[1] + END_OFFSET), END.pack(500))
        for number in range(3 * SLOTS):
            recorder.put(Slot(start_ns=600 + 2 * number, end_ns=601 + 2 * number))
        assert conversion.advance(recorder.number)
    assert "000000.seg" not in [path.name for path in live.glob("*.seg")]
    table, side = read_file(convert(live))
    (long,) = [row for row in table.to_pylist() if row["name"] == "long"]
    assert (long["start_ns"], long["duration_ns"], long["depth"]) == (5, 495, 0)
    assert {row["depth"] for row in table.to_pylist() if row["start_ns"] < 150} == {0, 1}
    assert not side.sorted


def test_a_slot_that_stays_free_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took it may be slow to write, but not for half a minute; what he writes counts."""
    seconds = [100]
    monkeypatch.setattr(
        incremental, "time", SimpleNamespace(monotonic_ns=lambda: seconds[0] * 10**9)
    )
    live = write_folder(tmp_path, definitions=DEFINITIONS)
    recorder = Recorder(live, random.Random(0))
    late, never = (recorder.put(Slot(definition=0)) for _ in range(2))

    def first_stays(conversion: IncrementalConversion) -> bool:
        for number in range(4 * SLOTS):
            recorder.put(Slot(start_ns=10 + number, end_ns=11 + number))
        while conversion.advance(recorder.number):
            pass
        return never[0].exists()

    with IncrementalConversion(live) as conversion:
        assert first_stays(conversion)
        seconds[0] += 29
        assert first_stays(conversion)
        recorder.write(late, Slot(start_ns=5, end_ns=6).pack())
        assert first_stays(conversion)
        seconds[0] += 2
        assert not first_stays(conversion)
    starts: list[Any] = read_file(convert(live))[0]["start_ns"].to_pylist()
    assert sorted(starts) == sorted([5, *[10 + number for number in range(4 * SLOTS)] * 4])


def test_spans_that_never_end_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too many segments wait, the oldest spans are given up as open, and counted."""
    monkeypatch.setattr(incremental, "_MAX_SEGMENTS_HELD", 3)
    live = write_folder(tmp_path, definitions=DEFINITIONS)
    recorder = Recorder(live, random.Random(0))
    for number in range(40 * SLOTS):
        kind = 2 if number % SLOTS == 0 else 1
        recorder.put(
            Slot(start_ns=1 + number, end_ns=2 + number if kind == 1 else 0, definition=kind)
        )
    with IncrementalConversion(live) as one:
        while one.advance(recorder.number):
            assert len(list(live.glob("*.seg"))) < 50
    assert len(list(live.glob("*.seg"))) < 12
    table, side = read_file(convert(live))
    assert table.num_rows == 40 * SLOTS
    assert table["status"].to_pylist().count("open") == 40
    assert 25 < side.dropped["ends of spans that were open for very long"] < 40


def test_it_looks_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk becomes Arrow only when enough full segments follow it."""
    monkeypatch.setattr(incremental, "AHEAD", 2)
    live = write_folder(tmp_path, definitions=DEFINITIONS)
    recorder = Recorder(live, random.Random(0))
    advanced = []
    with IncrementalConversion(live) as conversion:
        for _ in range(7):
            for _ in range(SLOTS):
                start = recorder.tick()
                recorder.put(Slot(start_ns=start, end_ns=start + 1))
            advanced.append(conversion.advance(recorder.number))
    assert advanced == [False, False, False, True, False, True, False]


@pytest.mark.parametrize("advanced", [False, True])
def test_an_unfinished_file_that_is_given_up(tmp_path: Path, *, advanced: bool) -> None:
    """It is removed, unless some of it counts."""
    live = write_folder(tmp_path, definitions=DEFINITIONS)
    recorder = Recorder(live, random.Random(0))
    for number in range(4 * SLOTS):
        recorder.put(Slot(start_ns=1 + number, end_ns=2 + number))
    with IncrementalConversion(live) as conversion:
        assert not advanced or conversion.advance(recorder.number)
        assert (live / UNFINISHED_FILE).exists()
        conversion.give_up()
    assert (live / UNFINISHED_FILE).exists() == advanced
    assert len(decode(live)[0]) == 4 * SLOTS
