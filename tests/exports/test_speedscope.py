"""Stacks in speedscope's own schema (npm package 1.25), each for as long as it was seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from support.samples import SAMPLES

import tracelens
from tracelens.errors import InvalidArgument
from tracelens.exports import speedscope
from tracelens.exports.content import of_trace

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "data" / "speedscope.schema.json").read_text(encoding="utf-8")
)


def written(name: str, place: Path) -> dict[str, Any]:
    speedscope.save(of_trace(tracelens.open(SAMPLES / name)), place)
    found: dict[str, Any] = json.loads(place.read_text())
    validate(found, SCHEMA)
    return found


def test_it_keeps_to_the_schema(tmp_path: Path) -> None:
    trace = tracelens.open(SAMPLES / "mpi-sampled")
    found = written("mpi-sampled", tmp_path / "a.json")
    threads = trace.samples.select("process", "pid", "thread_name").unique().height
    assert len(found["profiles"]) == threads
    assert {profile["name"].partition(":")[0] for profile in found["profiles"]} == {
        "rank 0",
        "rank 1",
    }


def test_time_is_that_of_the_samples(tmp_path: Path) -> None:
    """Weights sum to what lies between begin and end; stacks to what was sampled, none counted twice."""
    trace = tracelens.open(SAMPLES / "mpi-sampled")
    found = written("mpi-sampled", tmp_path / "a.json")
    frames = [frame["name"] for frame in found["shared"]["frames"]]
    sampled = 0
    for profile in found["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]
        pairs = zip(profile["samples"], profile["weights"], strict=True)
        sampled += sum(weight for stack, weight in pairs if stack)
    whole = int((trace.samples["end_ns"] - trace.samples["start_ns"]).sum())
    assert sampled == pytest.approx(whole, rel=0.001)
    assert any(frame["line"] > 0 for frame in found["shared"]["frames"] if "line" in frame)
    assert any(name == "main" for name in frames)


def test_without_stacks_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="record with 'tracelens record --sample'"):
        written("jax", tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("mine")
    with pytest.raises(InvalidArgument, match="exists"):
        written("mpi-sampled", tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == "mine"
    with pytest.raises(InvalidArgument, match="cannot be written"):
        written("mpi-sampled", tmp_path / "nowhere" / "a.json")
