"""While a trace is read, its files are opened by the gate: watched at every open, for every format.

`tests/architecture/test_gate.py` looks at what Python does not see, calls of libraries in C and Rust.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.fuzz.runs import put, write_other_files
from support.fuzz.subjects import SUBJECTS, bases
from support.launch.recording import run_command

VERBS = ("info", "analyze", "validate", "convert")
# Who opens anything of a trace: its module, what it opens, and how.
WATCHED = """
import contextlib, io, json, os, sys
from pathlib import Path
from tracelens.cli import main

seen, root = set(), ""

def watch(event, words):
    named = bool(words) and isinstance(words[0], str | bytes | os.PathLike)
    if not root or event not in {"open", "sqlite3.connect"} or not named:
        return
    path = os.fsdecode(words[0]).removeprefix("file://").partition("?")[0]
    if not os.path.abspath(path).startswith(root + os.sep):
        return
    frame = sys._getframe(1)
    while frame and "/tracelens/" not in frame.f_code.co_filename:
        frame = frame.f_back
    module = frame.f_code.co_filename.rpartition("/tracelens/")[2] if frame else "?"
    follows = event == "open" and not words[2] & os.O_NOFOLLOW
    seen.add((module, os.path.relpath(path, root), event, follows))

sys.addaudithook(watch)
for run, out, verbs in json.loads(sys.argv[1]):
    root = os.path.realpath(run[0])
    for verb in verbs:
        words = [verb, run[1], *(["--to", "parquet", "--out", out] if verb == "convert" else [])]
        with contextlib.redirect_stdout(io.StringIO()):
            code = main(words)
        assert code in {0, 1}, (words, code)
root = ""
print(json.dumps(sorted(seen)))
"""
# What is opened past the gate: in folders of our own, or without following a link.
OWN = ("index-v", ".tracelens")
WITHOUT_LINKS = ("conversion/lock.py", "conversion/arrow_file.py", "conversion/folder.py")


@pytest.mark.end_to_end
@pytest.mark.parametrize("verbs", [("validate",), pytest.param(VERBS, marks=pytest.mark.slow)])
def test_every_format_is_opened_by_the_gate(verbs: tuple[str, ...], tmp_path: Path) -> None:
    """And each file is opened by it: what nobody opens would prove nothing."""
    runs = []
    for name, subject in SUBJECTS.items():
        run = tmp_path / name
        write_other_files(subject, run)
        opened = put(subject, run, bases(subject)[0])
        place = run if subject.is_ours or name in {"kineto", "nsight", "otf2"} else opened
        asked = [*verbs, *(["index"] if subject.is_ours and verbs == VERBS else [])]
        runs.append(((str(run), str(place)), str(tmp_path / f"{name}.parquet"), asked))
    done = run_command(
        [sys.executable, "-c", WATCHED, json.dumps(runs)],
        {"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    seen = json.loads(done.stdout)
    by_gate = {file for module, file, _, _ in seen if module == "schema/gate.py"}
    past = [row for row in seen if row[0] != "schema/gate.py"]
    assert {Path(subject.file).name for subject in SUBJECTS.values()} <= {
        Path(file).name for file in by_gate
    }
    unexplained = [
        (module, file)
        for module, file, event, follows in past
        if not (
            file.startswith(OWN)
            or file.endswith(OWN)
            or (module in WITHOUT_LINKS and not follows)
            or (event == "sqlite3.connect" and file in by_gate)
        )
    ]
    assert unexplained == []
