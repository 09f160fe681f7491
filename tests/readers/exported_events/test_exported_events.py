"""What TraceLens wrote for Perfetto is read back; that whole samples come back is in test_round_trip."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.samples import sample_trace

import tracelens as tl
from tracelens.errors import EmptyTrace, NotATrace
from tracelens.exports import perfetto
from tracelens.exports.content import select_content
from tracelens.readers import READERS
from tracelens.readers.exported_events import ExportedEventsReader, is_exported

FORMAT = "trace events that TraceLens exported"
HEAD = '{"displayTimeUnit":"ns","otherData":{"written by": "TraceLens"'


def export_sample(folder: Path, name: str = "jax") -> Path:
    file = folder / "run.json"
    perfetto.save(select_content(sample_trace(name)), file)
    return file


def change_events(file: Path, change: dict[str, Any], events: int = 3) -> Path:
    """Change the first events that are no names."""
    content = json.loads(file.read_text())
    for event in [e for e in content["traceEvents"] if e["ph"] == "X"][:events]:
        event.update(change)
    text = json.dumps(content, separators=(",", ":")).replace('"written by":"', '"written by": "')
    file.write_text(text)
    return file


def test_our_file_is_told_from_those_of_others(tmp_path: Path) -> None:
    file = export_sample(tmp_path)
    assert next(reader.name for reader in READERS if reader.sniff(file)) == FORMAT
    packed = tmp_path / "run.json.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert tl.open(packed).workers.height == tl.open(file).workers.height
    other = tmp_path / "other.json"
    other.write_text('{"traceEvents": [{"ph": "X", "name": "TraceLens", "ts": 1, "dur": 1}]}')
    assert not is_exported(other)


def test_a_part_that_the_dashboard_wrote(tmp_path: Path) -> None:
    """Its file does not state the number of ranks; the present ranks and hosts are read."""
    trace = sample_trace("mpi-late-rank")
    selection = replace(perfetto.make_selection(select_content(trace)), facts={})
    file = tmp_path / "part.json"
    file.write_text("".join(perfetto.write(selection)))
    read_trace = tl.open(file)
    columns = ["rank", "role", "host"]
    assert read_trace.workers.select(columns).equals(trace.workers.select(columns))
    assert read_trace.events.collect().height == sum(
        trace.events_of(process).height for process in trace.workers["process"]
    )


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    file = export_sample(tmp_path)
    event_count = tl.open(file).events.collect().height
    file.write_bytes(file.read_bytes()[:-3_000])
    trace = ExportedEventsReader().read(file)
    assert 0 < trace.events.collect().height < event_count
    assert [note.kind for note in trace.notes if note.kind == "truncated"] == ["truncated"]


@pytest.mark.parametrize(
    "change",
    [
        {"ts": "soon"},
        {"ts": -5e30},
        {"dur": -1.0},
        {"cat": "nonsense"},
        {"pid": 99},
        {"pid": [1]},
        {"name": None},
        {"ph": ["X"], "tracelens": {"thread": 0}},
    ],
    ids=str,
)
def test_events_that_cannot_be_are_counted(change: dict[str, Any], tmp_path: Path) -> None:
    trace = tl.open(change_events(export_sample(tmp_path), change))
    assert sum(trace.dropped.values()) == 3


@pytest.mark.parametrize(
    "own",
    [
        {"thread": -7, "stream": 10**30, "device_start_ns": "x"},
        {"thread": 10**12},
        {"thread": "main"},
        {"micro_step": -1, "thread": 0},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_cost_themselves(own: dict[str, Any], tmp_path: Path) -> None:
    file = change_events(export_sample(tmp_path), {"tracelens": own})
    assert tl.open(file).workers.height == sample_trace("jax").workers.height


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"tracelens": 7},
        {"tracelens": {"processes": {"process": 1}, "communicators": [1], "origin_ns": "x"}},
        {"tracelens": {"processes": [7, {"process": 1, "world": -5}], "communicators": {"a": "b"}}},
        {"notes": ["a"], "tracelens": {"window_ns": -1, "offset_ns": True}},
    ],
    ids=str,
)
def test_a_head_that_says_nonsense_is_passed_over(facts: dict[str, Any], tmp_path: Path) -> None:
    file = export_sample(tmp_path)
    content = json.loads(file.read_text())
    further_facts = json.dumps(facts)[1:-1]
    head = HEAD + (f",{further_facts}" if further_facts else "")
    file.write_text(f'{head}}},"traceEvents":{json.dumps(content["traceEvents"])}}}')
    assert tl.open(file).workers.height == sample_trace("jax").workers.height


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(HEAD + "}}")
    with pytest.raises(NotATrace, match=r"'a\.json' cannot be read"):
        tl.open(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(HEAD + '},"traceEvents":[]}')
    with pytest.raises(EmptyTrace):
        tl.open(tmp_path / "b.json")
