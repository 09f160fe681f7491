"""`tracelens convert` writes a run, or a part, and says how much; what cannot be is a sentence."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from support.launch.patience import PATIENCE_S
from support.runs.indexes import recorded
from support.tiers import mark_slow

import tracelens
from tracelens.cli import convert, main
from tracelens.exports import EXPORTS
from tracelens.schema.ownership import MARKER_FILE, is_ours
from tracelens.simulator.synthetic import Scenario

# Runs the verb with files of at most so many bytes: as on a disk that is full after them.
ON_A_SMALL_DISK = """
import resource, sys
from tracelens.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""
KILLED = """
import os, signal, sys
import tracelens as tl
tl.start(sys.argv[1], rank=5, world=6, local_rank=5)
for number in range(30):
    with tl.step(number), tl.span("forward", kind="forward"):
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""
# speedscope shows sampled stacks, which these runs have not (tests/exports/test_speedscope.py).
FORMATS = [name for name in EXPORTS if name not in {"speedscope", "perfetto_manifest"}]
EVERY_FORMAT = pytest.mark.parametrize("to", FORMATS)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("traces") / "run")


def test_formats_are_those_that_there_are() -> None:
    """The verb lists the names itself, so that its help imports no library."""
    assert list(EXPORTS) == list(convert.FORMATS)


def test_ranks_and_steps_are_chosen(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reported number of events is that of the file, and the file states the choice."""
    out = tmp_path / "some.json"
    chosen = ["--ranks", "0,2-9", "--steps", "10-12", "--out", str(out)]
    assert main(["convert", str(trace), "--to", "perfetto", *chosen]) == 0
    output = capsys.readouterr().out
    size_line = re.search(r"some.json: ([\d,]+) events, [\d.]+ KiB\n", output)
    assert size_line
    written = json.loads(out.read_text())
    events = [event for event in written["traceEvents"] if event["ph"] != "M"]
    assert len(events) == int(size_line[1].replace(",", ""))
    named = {e["args"]["name"] for e in written["traceEvents"] if e["name"] == "process_name"}
    assert {name.split(" (")[0] for name in named} == {"rank 0", "rank 2"}
    arguments = [event["args"] for event in events if event["ph"] not in "stf"]  # no arrows
    assert {found.get("step") for found in arguments} - {None} == {10, 11, 12}
    note = "As asked, only ranks 0,2-9 and steps 10-12 of the run are here."
    assert note in output
    assert written["otherData"]["notes"] == note


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@EVERY_FORMAT
def test_a_whole_run_is_named_after_itself(trace: Path, empty: Path, to: str) -> None:
    """Without `--out` it stands where one is, under the run's name, and nothing else does."""
    assert main(["convert", str(trace), "--to", to]) == 0
    assert [entry.name for entry in empty.iterdir()] == [f"run{EXPORTS[to].SUFFIX}"]


def test_steps_of_a_trace_folder_are_those_asked_for(trace: Path, tmp_path: Path) -> None:
    """No neighbours come along, and the notes say what is not there."""
    out = tmp_path / "part"
    assert (
        main(["convert", str(trace), "--to", "native", "--steps", "3-5,8", "--out", str(out)]) == 0
    )
    part = tracelens.open(out)
    assert sorted(part.steps["step"].unique()) == [3, 4, 5, 8]
    assert [note.sentence for note in part.notes if note.kind == "chosen"] == [
        "As asked, only steps 3-5,8 of the run are here."
    ]


def test_time_counts_from_the_first_step(trace: Path, tmp_path: Path) -> None:
    """Spans that touch the window are whole; the file holds no others."""
    run = tracelens.open(trace)
    begin_ns = run.steps["start_ns"].min()
    assert isinstance(begin_ns, int)
    first_s, last_s = 0.2, 0.3
    out = tmp_path / "part.parquet"
    window = ["--time", f"{first_s}-{last_s}"]
    assert main(["convert", str(trace), "--to", "parquet", *window, "--out", str(out)]) == 0
    rows = pl.read_parquet(out)
    start, end = begin_ns + round(first_s * 1e9), begin_ns + round(last_s * 1e9)
    inside = (pl.col("start_ns") < end) & (pl.col("end_ns").fill_null(end) >= start)
    assert rows.filter(~inside).is_empty()
    spans = run.spans.filter(pl.col("start_ns") < end, pl.col("end_ns") > start).collect()
    assert rows.filter(type="span").height == spans.height > 0


@pytest.mark.parametrize(
    "case",
    [
        (["--ranks", "77"], "none of them is a worker"),
        (["--ranks", "3-1"], "expected numbers such as"),
        (["--ranks", "0-999999999"], "expected numbers such as"),
        (["--steps", "900-901"], "no step from 900 to 901; it has steps 0 to 29"),
        (["--time", "5-1"], "expected seconds from the run's begin"),
        (["--time", "9000-9001"], "Nothing is selected: times 9000-9001 s"),
        (["--out", "/nowhere/at/all.json"], "cannot be written (No such file or directory)"),
    ],
)
@EVERY_FORMAT
def test_what_cannot_be_is_one_sentence(
    trace: Path,
    empty: Path,
    capsys: pytest.CaptureFixture[str],
    to: str,
    case: tuple[list[str], str],
) -> None:
    """Exit 2, the sentence says what was wrong, and nothing is left behind."""
    chosen, sentence = case
    assert main(["convert", str(trace), "--to", to, *chosen]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert list(empty.iterdir()) == []


def test_an_unknown_format_is_refused(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2; those that there are get named."""
    with pytest.raises(SystemExit) as end:
        main(["convert", str(trace), "--to", "otf2"])
    assert end.value.code == 2
    assert "native" in capsys.readouterr().err


@EVERY_FORMAT
def test_nothing_is_written_over(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    """What exists stays as it is; a folder counts as there when it holds anything."""
    out = tmp_path / "there"
    if to == "native":
        out.mkdir()
        (out / "mine.txt").write_text("precious")
    else:
        out.write_text("precious")
    paths_before = sorted(tmp_path.rglob("*"))
    assert main(["convert", str(trace), "--to", to, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "exists" in error
    assert "--out" in error
    assert sorted(tmp_path.rglob("*")) == paths_before
    assert (out / "mine.txt" if to == "native" else out).read_text() == "precious"


def test_links_are_not_followed(trace: Path, tmp_path: Path) -> None:
    """A link to nothing, or to an empty folder, is something that exists."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, target in (("dangling", tmp_path / "no"), ("to-folder", elsewhere)):
        (tmp_path / name).symlink_to(target)
        assert main(["convert", str(trace), "--to", "native", "--out", str(tmp_path / name)]) == 2
    assert list(elsewhere.iterdir()) == []


def test_a_folder_made_here_is_marked(trace: Path, tmp_path: Path) -> None:
    """As those that the recorder makes; a folder that was there before, and empty, is the user's own."""
    made_folder, given_folder = tmp_path / "made", tmp_path / "given"
    given_folder.mkdir()
    for out in (made_folder, given_folder):
        assert main(["convert", str(trace), "--to", "native", "--out", str(out)]) == 0
        assert tracelens.open(out).workers.height == 3
    assert is_ours(made_folder)
    assert not (given_folder / MARKER_FILE).exists()


@pytest.mark.parametrize("to", mark_slow(FORMATS, ("native", "csv")))
def test_a_full_disk_leaves_nothing(trace: Path, tmp_path: Path, to: str) -> None:
    """The system's refusal is a sentence, and what was written until then is removed."""
    out = tmp_path / "out"
    command = ["convert", str(trace), "--to", to, "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_SMALL_DISK, "4096", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written (File too large)" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_folders_of_one_run_become_one(tmp_path: Path) -> None:
    """Ranks that were kept apart are joined before clocks are aligned, as if never parted."""
    run_folder = recorded(tmp_path / "whole", Scenario(ranks=4, steps=30))
    node_folders = [tmp_path / "a", tmp_path / "b"]
    for index, node_folder in enumerate(node_folders):
        node_folder.mkdir()
        for file in sorted(run_folder.iterdir())[2 * index : 2 * index + 2]:
            (node_folder / file.name).write_bytes(file.read_bytes())
    out = tmp_path / "joined"
    assert main(["convert", *map(str, node_folders), "--to", "native", "--out", str(out)]) == 0
    joined, expected = tracelens.open(out), tracelens.open(run_folder)
    assert joined.arrivals.equals(expected.arrivals)
    assert joined.processes.equals(expected.processes)


def test_runs_with_the_same_ranks_are_not_joined(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs are not one: the first rank that both hold is named."""
    other = recorded(tmp_path / "other")
    out = tmp_path / "out"
    assert main(["convert", str(trace), str(other), "--to", "csv", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert re.search(r"Both '.*run' and '.*other' hold rank 0", error)
    assert not out.exists()


def test_what_a_killed_rank_left_is_converted(tmp_path: Path) -> None:
    """Copied segments are read where they are, with their side tables, and stay as they were."""
    recording, copy, out = (tmp_path / name for name in ("recording", "copy", "out"))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(recording)],
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    shutil.copytree(recording, copy)
    before = sorted(entry.name for entry in copy.rglob("*"))
    assert main(["convert", str(copy), "--to", "native", "--out", str(out)]) == 0
    assert sorted(entry.name for entry in copy.rglob("*")) == before
    converted, expected = tracelens.open(out), tracelens.open(copy)
    assert converted.events.collect().equals(expected.events.collect())
    assert converted.clocks.height == expected.clocks.height
    assert not converted.processes["complete"].any()
    assert converted.processes["local_rank"].to_list() == [5]
