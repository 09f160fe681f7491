"""Readers, verbs and converters of one killed run, side by side, while some of them are killed.

Whoever looks sees every event once, and says nothing that is not so; what a killed one held is free.
`make proofs` takes longer at it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.launch.patience import PATIENCE_S, wait_until
from support.launch.recording import clean_environment

import tracelens as tl
from tracelens.conversion.lock import hold_lock
from tracelens.schema.ownership import MARKER_FILE, mark
from tracelens.schema.vocabulary import SIDE_FILE, TRACE_SUFFIX, UNFINISHED_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TURNS = max(6, int(os.environ.get("TRACELENS_PROOF_KILLS", "6")))  # `make proofs`: 100
LOOKS = 2  # of each that looks, at each turn
SPANS = 20_000
KILLED = f"""
import os, signal, sys
import tracelens as tl
tl.start(sys.argv[1], rank=0, world=1)
piece = tl.span("piece")
for number in range({SPANS}):
    with piece(nbytes=number):
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""
# Reads lines of what to do; writes what came of it.
LOOKING = f"""
import contextlib, io, json, os, random, sys, time
from pathlib import Path
import polars as pl
import tracelens as tl
from tracelens.cli import main
from tracelens.conversion.segments import convert
from tracelens.errors import TraceNotFound

def sound(events):
    pieces = events.filter(name="piece", status="closed")["bytes"].sort()
    return pieces.to_list() == list(range({SPANS}))

def by_reading(trace, out):
    found = tl.open(trace)
    return 0 if sound(found.events.collect()) and found.dropped == {{}} else 9, str(found.notes)

def by_conversion(trace, out):
    for place in trace.glob("*.segments"):
        with contextlib.suppress(TraceNotFound):  # it has become a file, and is gone
            convert(place)
    return by_reading(trace, out)

def by_verb(verb, trace, out):
    more = {{
        "convert": ["--to", "parquet", "--out", out],
        "analyze": ["--format", "json"],
    }}.get(verb, [])
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = main([verb, str(trace), *more])
    text = shown.getvalue()
    if verb == "convert" and code == 0 and not sound(pl.read_parquet(out)):
        code = 9
    if verb == "analyze" and code == 0:
        report = json.loads(text[text.index("{{"):])["trace"]
        code = 0 if (report["spans"], report["dropped"]) == ({SPANS}, {{}}) else 9
    return code, text

HOW = {{"read": by_reading, "segments": by_conversion}}
print(flush=True)
for line in sys.stdin:
    how, trace, out, wait_s = json.loads(line)
    time.sleep(wait_s)
    if how in HOW:
        code, text = HOW[how](Path(trace), out)
    else:
        code, text = by_verb(how, Path(trace), out)
    print(json.dumps([code, text]), flush=True)
"""
HOW = ("read", "segments", "info", "index", "validate", "analyze", "convert")
# What nobody may say of a run that is whole.
WRONG = ("left out", SIDE_FILE, "cannot be", "Traceback", "bug in TraceLens", "Nothing is left")


class Looking:
    """A process that looks again and again; it is begun anew when it was killed."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.begin()

    def begin(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", LOOKING],
            env=clean_environment(TRACELENS_CONVERTER="0"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "\n"

    def ask(self, trace: Path, out: Path, wait_s: float) -> None:
        if self.child.poll() is not None:
            self.end()
            self.begin()
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps([self.how, str(trace), str(out), wait_s]) + "\n")
        self.child.stdin.flush()

    def answer(self) -> tuple[int, str] | None:
        """Return the reader's result, None if it was killed before."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            return None
        code, text = json.loads(line)
        return int(code), str(text)

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


@contextmanager
def all_looking() -> Iterator[list[Looking]]:
    looking = [Looking(how) for how in HOW]
    try:
        yield looking
    finally:
        for one in looking:
            one.end()


@pytest.fixture(scope="module")
def killed_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trace folder with what a killed rank left: segments."""
    trace = tmp_path_factory.mktemp("killed") / "trace"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(trace)],
        env=clean_environment(TRACELENS_CONVERTER="0"),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    return trace


def lay_segments(source: Path, trace: Path) -> Path:
    """Lay the segments anew, with the proof that they are ours; return their folder."""
    shutil.copytree(source, trace)
    (segments_folder,) = trace.glob("*.segments")
    (segments_folder / MARKER_FILE).unlink()
    mark(segments_folder, trace)
    return segments_folder


def assert_once(trace: Path) -> None:
    """Check that every span occurs once, in one file."""
    pieces = tl.open(trace).events.collect().filter(name="piece", status="closed")["bytes"]
    assert pieces.sort().to_list() == list(range(SPANS))
    assert len(list(trace.glob(f"*{TRACE_SUFFIX}"))) == 1
    assert not list(trace.glob("*.segments"))


@pytest.mark.end_to_end
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_at_once(killed_trace: Path, tmp_path: Path) -> None:
    """All readers open a killed rank's trace together; in each turn one of them is killed."""
    answer_count = killed = 0
    took_s = 0.3
    with all_looking() as looking:
        for turn in range(TURNS):
            trace = tmp_path / f"trace-{turn}"
            lay_segments(killed_trace, trace)
            begin_s = time.monotonic()
            for reader in looking:
                for look in range(LOOKS):
                    out = tmp_path / f"{reader.how}-{turn}-{look}.parquet"
                    reader.ask(trace, out, random.uniform(0, took_s))
            victim = looking[turn % len(looking)]
            time.sleep(random.uniform(0, took_s))
            victim.child.kill()
            victim.child.wait()
            for reader in looking:
                for _ in range(LOOKS):
                    answer = reader.answer()
                    if answer is None:
                        killed += 1
                        break
                    assert_right(reader.how, *answer)
                    answer_count += 1
            took_s = (took_s + (time.monotonic() - begin_s) / LOOKS) / 2
            assert_once(trace)
            shutil.rmtree(trace)
    assert killed >= TURNS // 2
    assert answer_count >= TURNS * LOOKS * (len(HOW) - 1)


def assert_right(how: str, code: int, text: str) -> None:
    """Check an answer: to validate, it is a problem that the rank did not end its recording itself."""
    assert code == (1 if how == "validate" else 0), (how, code, text)
    assert not [wrong for wrong in WRONG if wrong in text], (how, text)
    if how == "validate":
        (line,) = text.splitlines()
        assert "did not end its recording itself" in line


STOPPED = """
import os, signal, sys
from pathlib import Path
from tracelens.conversion import segments
publish = segments._publish

def stopped(unfinished, path):
    os.kill(os.getpid(), signal.SIGSTOP)
    publish(unfinished, path)

segments._publish = stopped
segments.convert(Path(sys.argv[1]))
"""
READING = """
import sys
import tracelens as tl
print(flush=True)
print(tl.open(sys.argv[1]).events.collect().filter(name="piece", status="closed").height)
"""


@pytest.mark.end_to_end
def test_the_lock_goes_with_who_holds_it(killed_trace: Path, tmp_path: Path) -> None:
    """A converter is stopped and then killed; the waiting reader converts immediately."""
    segments_folder = lay_segments(killed_trace, tmp_path / "trace")
    environment = clean_environment(TRACELENS_CONVERTER="0")
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(segments_folder)], env=environment
    ) as holder:
        _, status = os.waitpid(holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with pytest.raises(BlockingIOError), hold_lock(segments_folder / SIDE_FILE):
            pass
        reading: Any
        with subprocess.Popen(
            [sys.executable, "-c", READING, str(segments_folder.parent)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as reading:
            assert reading.stdout.readline() == "\n"
            assert not segments_folder.with_suffix(TRACE_SUFFIX).exists()
            assert (segments_folder / UNFINISHED_FILE).exists()
            holder.kill()
            wait_until(lambda: holder.poll() is not None)
            assert reading.stdout.readline() == f"{SPANS}\n"
    assert_once(segments_folder.parent)
