"""Every verb answers a hostile file of any format with a sentence and an exit code, within limits.

`make fuzz` tries many thousands of inputs; this file tries one of each format.
"""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from support.hostile import changes, processes
from support.hostile.registry import FORMATS
from support.launch.recording import run_command

ROOT = Path(__file__).parents[2]
SOUND = ("kineto", "native", "segments", "csv", "parquet", "nsight", "xplane", "perfetto")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program as `make fuzz` does."""
    rooms = [str(ROOT / room) for room in (".", "instrument", "dashboard", "tests")]
    return run_command(
        [sys.executable, "-m", "support.hostile", *words],
        {"PYTHONPATH": ":".join(rooms)},
        exit_code=None,
    )


@pytest.mark.end_to_end
def test_one_input_of_each_format(tmp_path: Path) -> None:
    """No input fails, and one line counts them."""
    count = len(FORMATS)
    done = run("--inputs", str(count), "--out", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} inputs, " in done.stdout
    assert not (tmp_path / "kept" / "failing").exists()


@pytest.mark.parametrize(
    ("code", "said", "failure"),
    [
        (
            70,
            "tracelens: this is a bug: ValueError at lod/index.py:1, version 0",
            "ValueError at lod/index.py:1",
        ),
        (-9, "", "ended by signal 9"),
        (3, "refused", "no sentence on exit code 3"),
        (0, "thread 'polars-0' panicked at x", "a library printed"),
    ],
)
def test_a_failure_would_be_seen(code: int, said: str, failure: str, tmp_path: Path) -> None:
    """Or a run without failures would show nothing."""
    (tmp_path / "stdout").write_text("done")
    (tmp_path / "stderr").write_text(said)
    assert processes.find_failure(code, 1.0, 0, "info", tmp_path).startswith(failure)
    (tmp_path / "stderr").write_text("tracelens: it is no trace.\n")
    assert processes.find_failure(3, 1.0, 0, "info", tmp_path) == ""
    assert processes.find_failure(3, 11.0, 0, "info", tmp_path) == "more than 10 s of CPU"
    assert processes.find_failure(0, 1.0, 0, "info --format json", tmp_path) == "no valid JSON"


@pytest.mark.parametrize("name", SOUND)
def test_documents_are_sound_before_they_are_changed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise every changed input would be refused for the same reason."""
    from tracelens.cli import main  # noqa: PLC0415 - the program under test

    monkeypatch.setattr(changes, "change", lambda document, _random: document)
    monkeypatch.setattr(changes, "damage", lambda content, _random: content)
    codes = set()
    for seed in range(4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        made = FORMATS[name](folder, Random(seed))
        codes.add(main(["info", str(made.path), *made.options]))
        capsys.readouterr()
    assert 0 in codes
