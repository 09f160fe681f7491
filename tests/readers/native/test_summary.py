"""What files say of themselves is what reading, aligning and dividing them into steps finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.runs.damage import VICTIM, write_run
from support.runs.scenarios import DEVICES, HOT_SHARD
from support.runs.segments import Slot, write_folder

from tracelens import load
from tracelens.cli import main
from tracelens.cli.info import describe
from tracelens.conversion.arrow_file import write_events
from tracelens.conversion.messages import LEAD, read_footer
from tracelens.conversion.segments import convert
from tracelens.errors import EmptyTrace, NotATrace
from tracelens.readers.native.arrow_file import read_arrow, read_end
from tracelens.readers.native.summary import read_summaries
from tracelens.schema.side import Definition
from tracelens.simulator.synthetic import write

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_1 = Path(__file__).parents[2] / "data" / "schema_1"
OLD_RUNS = ("ps-hot-shard", "mpi-killed-rank", "mpi-sampled")
STEP = Definition(1, "step", "step")
WORK = Definition(2, "work", "user")


def info_of(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run `tracelens info` and parse its JSON output."""
    assert main(["info", str(path), "--format", "json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def in_schema_2(source: Path, target: Path) -> Path:
    """Copy a run as it would be written today."""
    target.mkdir()
    for file in source.glob("*.arrow"):
        recording = read_arrow(file)
        write_events(target / file.name, recording.table, recording.side_tables)
    return target


@pytest.mark.parametrize("name", OLD_RUNS)
@pytest.mark.parametrize("schema", [1, 2])
def test_info_of_recorded_runs_agrees_with_the_whole_trace(
    name: str, schema: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of schema 1 are counted, those of schema 2 say it: the same as the whole trace tells."""
    run = SCHEMA_1 / name
    if schema == 2:
        run = in_schema_2(run, tmp_path / name)
    ends = [read_end(file) for file in run.glob("*.arrow")]
    assert {end is not None and end.summary is not None for end in ends} == {schema == 2}
    info, expected = info_of(run, capsys), describe(load.open(run))
    assert info["clock"] == "one clock"
    assert set(info["notes"]) <= set(expected["notes"])
    for fact in ("ranks_expected", "processes", "sampled", "devices"):
        assert info[fact] == expected[fact]


@pytest.mark.parametrize("scenario", [DEVICES, HOT_SHARD], ids=["devices", "shards"])
def test_info_of_simulated_runs_agrees_with_the_whole_trace(
    scenario: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Processes and devices, also of runs that have both workers and shards."""
    write(scenario, tmp_path)
    found, expected = info_of(tmp_path, capsys), describe(load.open(tmp_path))
    found["clock"] = expected["clock"]
    assert found == expected


def test_no_event_is_read(tmp_path: Path) -> None:
    """Nothing else of a file is looked at than its end."""
    victim = write_run(tmp_path)
    summary_before, _ = read_summaries(tmp_path)
    content = bytearray(victim.read_bytes())
    end = read_footer(memoryview(content)).batch_messages[-1].end_bytes
    content[len(LEAD) + 8 : end] = bytes(end - len(LEAD) - 8)
    victim.write_bytes(content)
    assert read_summaries(tmp_path)[0] == summary_before
    with pytest.raises((NotATrace, pa.ArrowInvalid, OSError)):
        read_arrow(victim)


def test_a_file_that_was_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is left of it is counted, and said."""
    victim = write_run(tmp_path)
    victim.write_bytes(victim.read_bytes()[:-1])
    info, expected = info_of(tmp_path, capsys), describe(load.open(tmp_path))
    assert info["processes"] == expected["processes"]
    assert info["notes"] == expected["notes"]
    assert "damaged or cut off" in info["notes"][0]


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is left out in one sentence; where none can be read, that is the answer."""
    write_run(tmp_path).write_bytes(b"{}")
    (note,) = info_of(tmp_path, capsys)["notes"]
    assert note.startswith(f"'{VICTIM}' was left out: it is not an Arrow file")
    for file in tmp_path.iterdir():
        file.write_bytes(b"{}")
    with pytest.raises(NotATrace, match="None of the 3 recordings"):
        read_summaries(tmp_path)


def test_info_of_an_empty_recording(tmp_path: Path) -> None:
    convert(write_folder(tmp_path))
    with pytest.raises(EmptyTrace, match="not one event"):
        read_summaries(tmp_path)


def steps_of(slots: Sequence[Slot], folder: Path) -> int:
    """Return the number of steps of a process with these records, as its file states it."""
    end = read_end(convert(write_folder(folder, slots, definitions=(STEP, WORK))))
    assert end is not None
    assert end.summary is not None
    return end.summary.steps


def step(start: int, end: int, **more: int) -> Slot:
    return Slot(start_ns=start, end_ns=end, definition=1, **more)


def work(start: int, **more: int) -> Slot:
    return Slot(start_ns=start, end_ns=start + 1, definition=2, **more)


STEPS: dict[str, tuple[list[Slot], int]] = {
    "one after the other": ([step(1, 5), work(2), step(5, 9), step(10, 12)], 3),
    "one in another": ([step(1, 9), step(2, 4), step(5, 6), step(9, 12)], 2),
    "the last one open": ([step(1, 5), step(6, 0), work(7)], 2),
    "on two threads": ([step(1, 5), step(2, 3, thread=1), step(4, 5, thread=1), work(6)], 2),
    "none": ([work(1, step=0), work(3, step=0), work(5, step=4), work(7, step=0)], 2),
    "none, outside of any": ([work(1, step=-1), work(3, step=-1)], 1),
}


@pytest.mark.parametrize("case", STEPS)
def test_steps_are_counted_as_time_is_divided(case: str, tmp_path: Path) -> None:
    """Steps of the training thread: as time is divided into them."""
    slots, expected = STEPS[case]
    assert steps_of(slots, tmp_path) == expected
    assert load.open(tmp_path).steps.height == expected
