"""Nothing that TraceLens does asks for anything on a network, but for a trace that is on one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.launch.patience import PATIENCE_S
from support.samples import SAMPLES
from support.tiers import few_or_many

# Runs verbs, and ends with 99 where it or a library looks up a name or connects to another machine.
WATCHED: Final = """
import json, os, sys
def watch(event, arguments):
    if event == "socket.getaddrinfo" and arguments[0] not in (None, "", "localhost", "127.0.0.1", "::1"):
        sys.stderr.write(f"looked up {arguments[0]}\\n"); os._exit(99)
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        if arguments[1][0] not in ("localhost", "127.0.0.1", "::1"):
            sys.stderr.write(f"connected to {arguments[1]}\\n"); os._exit(99)
sys.addaudithook(watch)
if sys.argv[1] == "connect":
    import socket
    socket.create_connection(("192.0.2.1", 80), 0.1)
if sys.argv[1] == "record":
    import tracelens as tl
    tl.start(sys.argv[2], rank=0, world=2)
    with tl.step(0), tl.span("work", kind="forward"):
        pass
    tl.stop()
    sys.exit()
from tracelens.cli import main
for verb in map(json.loads, sys.argv[1:]):
    sys.stderr.write(f"{verb[0]}\\n")
    if main(verb) not in (0, 1):
        sys.exit(1)
"""
VERBS: Final = (
    ("info", "RUN"),
    ("analyze", "RUN", "--html", "OUT/report.html", "--tables", "OUT/tables"),
    ("index", "RUN"),
    ("validate", "RUN"),
    ("whatif", "RUN", "--what", "all"),
    ("compare", "RUN", "RUN"),
    ("convert", "RUN", "--to", "perfetto", "--out", "OUT/run.json"),
    ("doctor",),
)


def watch_connections(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WATCHED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_connection_would_be_seen() -> None:
    done = watch_connections("connect")
    assert (done.returncode, done.stderr) == (99, "looked up 192.0.2.1\n")


def test_recording_opens_no_connection(tmp_path: Path) -> None:
    done = watch_connections("record", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "run").glob("*.arrow"))


@pytest.mark.parametrize("count", few_or_many(2, len(VERBS)))
def test_verbs_open_no_connection(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error names the verb that did it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(SAMPLES / "ddp-slow-backprop", tmp_path / "run")
    commands = json.dumps(VERBS[:count]).replace("RUN", str(tmp_path / "run"))
    commands = commands.replace("OUT", str(tmp_path))
    done = watch_connections(*map(json.dumps, json.loads(commands)))
    assert done.returncode == 0, done.stderr
