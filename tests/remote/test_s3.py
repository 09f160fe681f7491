"""A run in a bucket is explained, listed and converted as the same run on this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.runs.segments import Slot, write_folder
from support.runs.tables import table_of

import tracelens
from tracelens.cli import main
from tracelens.distil import kept_report
from tracelens.load import open_joined
from tracelens.readers.native.arrow_file import read_end
from tracelens.remote import mirror
from tracelens.schema.ownership import MARKER_FILE
from tracelens.simulator.synthetic import Scenario, write

if TYPE_CHECKING:
    from remote.conftest import Bucket

pytestmark = pytest.mark.end_to_end


def output_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(output_of(capsys, "analyze", *arguments, "--format", "json"))


def copies(cache: Path) -> dict[str, int]:
    """Return the inode of each file that was fetched, by name: another copy has another."""
    return {file.name: file.stat().st_ino for file in cache.rglob("worker-*") if file.is_file()}


def test_the_report_is_that_of_the_local_run(
    bucket: Bucket, slow_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Number by number; and the run is opened from Python."""
    address = bucket.put(slow_run, "runs/slow")
    assert report(capsys, address) == report(capsys, slow_run)
    assert tracelens.open(address).processes.height == 4


def test_nothing_is_fetched_twice(bucket: Bucket, slow_run: Path, cache: Path) -> None:
    """Only what changed is fetched again, and what is gone there goes here."""
    address = bucket.put(slow_run, "run")
    mirror.fetch_copy(address)
    first_copies = copies(cache)
    assert len(first_copies) == 4
    mirror.fetch_copy(address)
    assert copies(cache) == first_copies

    names = sorted(first_copies)
    bucket.put(slow_run / names[1], f"run/{names[0]}")
    bucket.remove(f"run/{names[3]}")
    mirror.fetch_copy(address)
    second_copies = copies(cache)
    assert second_copies.keys() == {*names[:3]}
    assert {name for name in second_copies if second_copies[name] != first_copies[name]} == {
        names[0]
    }


@pytest.mark.slow
def test_the_report_of_a_bucket_is_kept_in_the_cache(
    bucket: Bucket, slow_run: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the user's cache, and only as long as the run in the bucket is as it was."""
    address = bucket.put(slow_run, "run")
    first_report = output_of(capsys, "analyze", address)
    assert kept_report.find(mirror.fetch_copy(address)) is not None
    fetched = copies(cache)
    assert output_of(capsys, "analyze", address) == first_report
    output_of(capsys, "analyze", address, "--again")
    assert copies(cache) == fetched
    bucket.remove(f"run/{sorted(slow_run.glob('*.arrow'))[3].name}")
    assert kept_report.find(mirror.fetch_copy(address)) is None


def test_info_reads_the_ends_of_files(
    bucket: Bucket, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it prints is what it prints of the local run; the events are not fetched."""
    run = tmp_path / "long"
    write(Scenario(ranks=2, steps=3000), run)
    address = bucket.put(run, "long")
    remote = json.loads(output_of(capsys, "info", address, "--format", "json"))
    local = json.loads(output_of(capsys, "info", run, "--format", "json"))
    assert remote.pop("trace") == address
    local.pop("trace")
    assert remote == local
    for copy in cache.rglob("worker-*.arrow"):
        assert copy.stat().st_size == (run / copy.name).stat().st_size
        assert copy.stat().st_blocks * 512 < copy.stat().st_size / 2


def test_a_file_without_a_summary(
    bucket: Bucket, slow_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file whose end is missing is fetched whole, and counted as far as it goes."""
    run = tmp_path / "cut"
    shutil.copytree(slow_run, run, ignore=shutil.ignore_patterns("index-*"))
    victim = min(run.iterdir())
    victim.write_bytes(victim.read_bytes()[:-100])
    assert read_end(victim) is None
    remote, local = (
        json.loads(output_of(capsys, "info", address, "--format", "json"))["processes"]
        for address in (bucket.put(run, "cut"), run)
    )
    assert remote == local


@pytest.mark.slow
def test_patterns_and_folders_here_and_there(
    bucket: Bucket, slow_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders of one run may lie in a bucket and on this machine; a pattern names several."""
    files = sorted(slow_run.glob("*.arrow"))
    for node, file in enumerate(files[:2]):
        bucket.put(file, f"nodes/node-{node}/run/{file.name}")
    local_folder = tmp_path / "rest"
    local_folder.mkdir()
    for file in files[2:]:
        shutil.copy(file, local_folder)
    nodes = f"s3://{bucket.name}/nodes/node-*/run/"
    assert report(capsys, nodes, local_folder) == report(capsys, slow_run)
    joined = open_joined([f"s3://{bucket.name}/nodes/node-{node}/run" for node in (0, 1)])
    assert joined.processes.height == 2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_table_in_a_bucket_is_read_as_a_local_one(
    bucket: Bucket, slow_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """A single file is read as it is locally, the name included that reports give it."""
    table, file = table_of(tracelens.open(slow_run)), tmp_path / f"events.{form}"
    table.write_parquet(file) if form == "parquet" else table.write_csv(file)
    address = bucket.put(file, file.name)
    assert report(capsys, address) == report(capsys, file)
    assert f"{address}: 4 processes" in output_of(capsys, "info", address)


def test_segments_in_a_bucket_are_read_and_never_converted(
    bucket: Bucket, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Segments are read, in the copy and never converted; nothing else of the folder is fetched."""
    folder = tmp_path / "killed"
    write_folder(folder, [Slot(1_000, 2_000, step=0)], end=False)
    (folder / "index-v3").mkdir()
    (folder / "index-v3" / "report.json").write_text("{}")
    address = bucket.put(folder, "killed")
    objects_before = bucket.client.find(bucket.name)
    (found,) = json.loads(output_of(capsys, "info", address, "--format", "json"))["processes"]
    assert (found["events"], found["complete"]) == (1, False)
    assert bucket.client.find(bucket.name) == objects_before
    assert [*cache.rglob("side.jsonl")]
    assert not [*cache.rglob("report.json")]


@pytest.mark.slow
def test_other_verbs_work_on_a_bucket(
    bucket: Bucket, slow_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is converted, checked and given an index as if it were here."""
    address = bucket.put(slow_run, "run")
    output_of(capsys, "convert", address, "--to", "native", "--out", tmp_path / "whole")
    assert len(list((tmp_path / "whole").glob("*.arrow"))) == 4
    assert output_of(capsys, "validate", address).startswith(address)
    assert "levels of detail" in output_of(capsys, "index", address)


@pytest.mark.slow
def test_workers_read_the_copies(
    bucket: Bucket, slow_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Processes of an executor read what was fetched."""
    address = bucket.put(slow_run, "run")
    assert report(capsys, address, "--executor", "processes:2") == report(capsys, slow_run)


@pytest.mark.slow
def test_a_cache_that_was_moved(
    bucket: Bucket, slow_run: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What TraceLens did not make here is not written to: a sentence says what to remove."""
    address = bucket.put(slow_run, "run")
    mirror.fetch_copy(address)
    (cache_folder,) = cache.iterdir()
    (cache_folder / MARKER_FILE).write_text("tracelens.folder/1 1 0\n")
    assert main(["analyze", address]) == 3
    assert f"'{cache_folder}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("s3://{bucket}/nothing", "There is no 's3://{bucket}/nothing'"),
        ("s3://no-such-bucket/run", "NoSuchBucket"),
        pytest.param("s3://{bucket}/run-*", "Nothing matches", marks=pytest.mark.slow),
        ("s3://{bucket}", "it holds 1 folders, open one of them, for example 's3://{bucket}/runs'"),
    ],
)
def test_a_missing_object_is_named(
    bucket: Bucket, slow_run: Path, capsys: pytest.CaptureFixture[str], what: str, words: str
) -> None:
    """What is missing is named, and so is what there is instead."""
    bucket.put(min(slow_run.glob("*.arrow")), "runs/slow/worker-00000-1.arrow")
    assert main(["analyze", what.format(bucket=bucket.name)]) == 3
    said = capsys.readouterr().err
    assert words.format(bucket=bucket.name) in said
    assert len(said.splitlines()) == 1


def test_missing_credentials_are_reported(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    type(bucket.client).clear_instance_cache()
    assert main(["info", f"s3://{bucket.name}/run"]) == 3
    assert "No credentials were found" in capsys.readouterr().err


def test_a_bucket_that_does_not_answer_is_reported(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    type(bucket.client).clear_instance_cache()
    assert main(["info", f"s3://{bucket.name}/run"]) == 3
    said = capsys.readouterr().err
    assert "cannot be reached" in said
    assert "hidden-words" not in said
