"""Stacks in speedscope's own schema (npm package 1.25), each for as long as it was seen."""

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from support.launch.patience import PATIENCE_S
from support.samples import sample_trace

from tracelens.errors import InvalidArgument
from tracelens.exports import speedscope
from tracelens.exports.content import select_content

PACKAGE = "speedscope@1.25.0"
IN_PACKAGE = "package/dist/release/file-format-schema.json"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the schema as npm has it; skip where there is no npm, or it reaches no registry."""
    folder = tmp_path_factory.mktemp("npm")
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    command = ["npm", "pack", PACKAGE, "--silent", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=PATIENCE_S)
    packed = next(folder.glob("*.tgz"), None)
    if done.returncode or packed is None:
        pytest.skip(f"npm has no {PACKAGE}")
    with tarfile.open(packed) as archive:
        member = archive.extractfile(IN_PACKAGE)
        assert member is not None
        found: dict[str, Any] = json.load(member)
    return found


def save_and_read(name: str, file: Path) -> dict[str, Any]:
    speedscope.save(select_content(sample_trace(name)), file)
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_it_keeps_to_the_schema(tmp_path: Path, schema: dict[str, Any]) -> None:
    validate(save_and_read("mpi-sampled", tmp_path / "a.json"), schema)


def test_each_thread_has_a_profile(tmp_path: Path) -> None:
    trace = sample_trace("mpi-sampled")
    content = save_and_read("mpi-sampled", tmp_path / "a.json")
    threads = trace.samples.select("process", "pid", "thread_name").unique().height
    assert len(content["profiles"]) == threads
    assert {profile["name"].partition(":")[0] for profile in content["profiles"]} == {
        "rank 0",
        "rank 1",
    }


def test_time_is_that_of_the_samples(tmp_path: Path) -> None:
    """Weights sum to what lies between begin and end; stacks to what was sampled, none counted twice."""
    trace = sample_trace("mpi-sampled")
    content = save_and_read("mpi-sampled", tmp_path / "a.json")
    frames = [frame["name"] for frame in content["shared"]["frames"]]
    sampled = 0
    for profile in content["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]
        pairs = zip(profile["samples"], profile["weights"], strict=True)
        sampled += sum(weight for stack, weight in pairs if stack)
    whole = int((trace.samples["end_ns"] - trace.samples["start_ns"]).sum())
    assert sampled == pytest.approx(whole, rel=0.001)
    assert any(frame["line"] > 0 for frame in content["shared"]["frames"] if "line" in frame)
    assert any(name == "main" for name in frames)


def test_without_stacks_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="record with 'tracelens record --sample'"):
        save_and_read("jax", tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("mine")
    with pytest.raises(InvalidArgument, match="exists"):
        save_and_read("mpi-sampled", tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == "mine"
    with pytest.raises(InvalidArgument, match="cannot be written"):
        save_and_read("mpi-sampled", tmp_path / "nowhere" / "a.json")
