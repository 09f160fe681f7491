"""`TRACELENS_DIR` alone switches the recorder on, at the first event of a program that uses it."""

import os
import re
from pathlib import Path

import pytest
from support.launch.recording import clean_environment, read_all, read_one, run_child

import tracelens as tl
from tracelens_instrument import lifecycle, recorder
from tracelens_instrument.core import environment


def test_first_event_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is created before something is recorded; then it is all there."""
    folder = tmp_path / "deep" / "trace"
    monkeypatch.setenv("TRACELENS_DIR", str(folder))
    lifecycle.wait_for_first_use()
    assert recorder.active()
    assert not folder.exists()
    with tl.span("piece"):
        assert folder.exists()
    tl.stop()
    assert read_one(folder).one("piece")["status"] == "closed"


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "use",
    [
        "with tl.span('x'): pass",
        "with tl.step(1): pass",
        "tl.instant('x')",
        *(
            pytest.param(use, marks=pytest.mark.slow)
            for use in (
                "with tl.span('x')(nbytes=1): pass",
                "tl.span('x').begin().end()",
                "tl.traced('x')(len)('')",
                "tl.counter('x', 1)",
            )
        ),
    ],
)
def test_any_use_opens(tmp_path: Path, use: str) -> None:
    """The first use of any function starts the recording if the program never calls start."""
    run_child(f"import tracelens as tl\n{use}", TRACELENS_DIR=str(tmp_path / "t"), RANK="3")
    recorded = read_one(tmp_path / "t")
    assert len(recorded.events) == 1
    assert recorded.side.process.rank == 3
    assert recorded.side.complete


@pytest.mark.end_to_end
def test_program_that_does_not_use_it_is_left_alone(tmp_path: Path) -> None:
    """Neither an import nor a handle makes a file."""
    code = "import tracelens as tl; SPAN = tl.span('x')"
    run_child(code, TRACELENS_DIR=str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_start_without_folder_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit start fills in what only the program knows, and keeps the folder."""
    monkeypatch.setenv("TRACELENS_DIR", str(tmp_path / "t"))
    tl.start(role="ps")
    tl.stop()
    assert read_one(tmp_path / "t").side.process.role == "ps"


def test_default_folder_is_named_by_time(tmp_path: Path) -> None:
    """Without any folder it is traces/<UTC time>."""
    tl.start()
    tl.stop()
    (folder,) = (tmp_path / "traces").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ", folder.name)
    assert read_one(folder).side.complete


def test_ranks_of_a_launcher_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that start seconds apart record to one folder, named by when their launcher began."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert environment.default_directory().name != "1970-01-01T00-00-00Z"


def test_environment_is_left_as_found(tmp_path: Path) -> None:
    """What is set for children while recording goes away with it."""
    environment_before = dict(os.environ)
    tl.start(tmp_path / "t")
    assert os.environ["TRACELENS_DIR"] == str(tmp_path / "t")
    tl.stop()
    assert dict(os.environ) == environment_before


def test_folder_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of directory does not move a recording that has begun."""
    tl.start("here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with tl.span("piece"):
        pass
    tl.stop()
    assert len(read_one(tmp_path / "here").events) == 1


@pytest.mark.slow
@pytest.mark.end_to_end
def test_many_ranks_create_one_folder(tmp_path: Path) -> None:
    """Ranks that create the folder at the same moment do not get into each other's way."""
    code = """
import os, sys
for rank in range(8):
    if os.fork() == 0:
        break
else:
    for _ in range(8):
        assert os.wait()[1] == 0
    sys.exit()
import tracelens as tl
tl.start(sys.argv[1], rank=rank, world=8)
with tl.span("piece"):
    pass
"""
    run_child(code, tmp_path / "deep" / "trace")
    found = read_all(tmp_path / "deep" / "trace")
    assert [one.side.process.rank for one in found] == list(range(8))


def test_clean_environment_hides_launchers() -> None:
    """The helper of these tests keeps what launched the test run out of them."""
    assert "RANK" not in clean_environment()
