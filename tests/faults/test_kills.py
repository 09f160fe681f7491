"""After a kill during the end of a recording, its conversion or its indexing, the trace is whole.

Every event is there, none twice, and nothing is refused. Kills while recording: see
tests/instrument/storage/test_kill.py, and of converters during a training: test_converter_kill.py there.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from support.launch.patience import PATIENCE_S, wait_until
from support.launch.recording import clean_environment

import tracelens as tl
from tracelens.lod import opening
from tracelens.simulator.synthetic import Scenario, write

if TYPE_CHECKING:
    from pathlib import Path

KILLS = int(os.environ.get("TRACELENS_PROOF_KILLS", "3"))  # `make proofs`: 100
SPANS = 60_000
FLAG = struct.Struct("@q")
FLAGGED = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    flag = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
"""
ENDING = f"""{FLAGGED}
import tracelens as tl
tl.start(sys.argv[2], rank=0, world=1)
piece = tl.span("piece")
for number in range({SPANS}):
    with piece(nbytes=number):
        pass
flag[0] = 1
tl.stop()
flag[0] = 2
"""
KILLED = ENDING.replace("tl.stop()", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
CONVERTING = f"""{FLAGGED}
from pathlib import Path
flag[0] = 1
convert(Path(sys.argv[2]))
flag[0] = 2
"""
INDEXING = f"""{FLAGGED}
from tracelens.cli import main
import tracelens.lod.index, tracelens.analyses, tracelens.load
flag[0] = 1
main(["index", sys.argv[2]])
flag[0] = 2
"""


class Killed:
    """Runs a program, and kills it at a random moment between its two flags."""

    def __init__(self, program: str, tmp_path: Path) -> None:
        self.program, self.flags, self.took_s, self.in_time = program, tmp_path / "flags", 0.2, 0

    def __call__(self, *words: object) -> None:
        """Kill the process; one that ends before the kill tells how long it takes."""
        self.flags.write_bytes(bytes(FLAG.size))
        with self.flags.open("r+b") as file:
            flag = mmap.mmap(file.fileno(), FLAG.size)
        command = [sys.executable, "-c", self.program, str(self.flags), *map(str, words)]
        environment = clean_environment(TRACELENS_CONVERTER="0")
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as child:
            wait_until(lambda: FLAG.unpack_from(flag)[0] >= 1 or child.poll() is not None)
            begin_s = time.monotonic()
            until_s = begin_s + random.uniform(0, self.took_s)
            while time.monotonic() < until_s and FLAG.unpack_from(flag)[0] < 2:
                time.sleep(0.0005)
            if FLAG.unpack_from(flag)[0] == 2:
                self.took_s = max(0.01, (time.monotonic() - begin_s) * 1.1)
            else:
                self.in_time += 1
            child.kill()
        flag.close()


def check(trace: Path) -> None:
    """Read a trace of one rank: all its spans, each once, also if it is read again.

    Of segments whose file was whole already some may be left, which no reader reads.
    """
    for _ in range(2):
        read_trace = tl.open(trace)
        pieces = read_trace.events.collect().filter(name="piece", status="closed")["bytes"].sort()
        assert pieces.to_list() == list(range(SPANS))
        assert [note for note in read_trace.notes if note.kind in {"unreadable", "dropped"}] == []
    assert len(list(trace.glob("*.arrow"))) == 1


def through(killed: Killed, once: object) -> None:
    """Kill until `KILLS` kills came in time; most do."""
    tries = 0
    while killed.in_time < KILLS:
        once(tries)  # type: ignore[operator]  # a function
        tries += 1
        assert tries < 4 * KILLS + 20


@pytest.mark.end_to_end
def test_while_a_recording_ends(tmp_path: Path) -> None:
    killed = Killed(ENDING, tmp_path)

    def once(turn: int) -> None:
        trace = tmp_path / f"trace-{turn}"
        killed(trace)
        check(trace)
        shutil.rmtree(trace)

    through(killed, once)


@pytest.mark.end_to_end
@pytest.mark.slow
def test_while_segments_are_converted(tmp_path: Path) -> None:
    """The next reader goes on, or begins again."""
    killed = Killed(CONVERTING, tmp_path)

    def once(turn: int) -> None:
        trace = tmp_path / f"trace-{turn}"
        (tmp_path / "begin").write_bytes(bytes(FLAG.size))
        command = [sys.executable, "-c", KILLED, str(tmp_path / "begin"), str(trace)]
        environment = clean_environment(TRACELENS_CONVERTER="0")
        subprocess.run(command, env=environment, timeout=PATIENCE_S, check=False)
        (folder,) = trace.glob("*.segments")
        killed(folder)
        check(trace)
        shutil.rmtree(trace)

    through(killed, once)


@pytest.mark.end_to_end
@pytest.mark.slow
def test_while_a_run_is_indexed(tmp_path: Path) -> None:
    """What is half written has no name; the next index is as if nothing had been."""
    write(Scenario(ranks=2, steps=40), tmp_path / "trace")
    findings = tl.analyze(tl.open(tmp_path / "trace")).findings
    killed = Killed(INDEXING, tmp_path)

    def once(turn: int) -> None:
        trace = tmp_path / f"trace-{turn}"
        shutil.copytree(tmp_path / "trace", trace)
        killed(trace)
        assert opening.explain_trace(tl.open(trace)).report.findings == findings
        found = opening.open_indexed(trace)
        assert found is not None
        assert found.report.findings == findings
        shutil.rmtree(trace)

    through(killed, once)
