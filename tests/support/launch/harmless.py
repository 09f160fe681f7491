"""A small training, run with the recorder and without: what it prints and how it ends must be equal."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

# `make test` tries the native recorder, `make test-all` both; TRACELENS_NATIVE chooses one of them.
RECORDERS = [
    pytest.param("1", id="native"),
    pytest.param("0", id="python", marks=pytest.mark.slow),
]
if "TRACELENS_NATIVE" in os.environ:
    RECORDERS = [pytest.param(os.environ["TRACELENS_NATIVE"], id="chosen")]
both_recorders = pytest.mark.parametrize("recorder", RECORDERS)

PRELUDE = """
import os, sys, warnings
import tracelens as tl
warnings.simplefilter("always")
FOLDER = os.environ["FOLDER"]
RECORDS = os.environ["RECORDS"] == "1"
SPAN = tl.span("compute", kind="forward")

def train(steps=20, spans=5):
    loss = 1.0
    for number in range(steps):
        with tl.step(number, samples=4):
            for _ in range(spans):
                with SPAN(nbytes=number):
                    loss = 0.99 * loss + 0.001 * number
            token = SPAN.begin()
            tl.counter("loss", loss)
            tl.instant("seen")
            token.end()
    print("loss", loss, flush=True)
"""


@dataclass(frozen=True)
class Ran:
    """How a training went."""

    output: str
    code: int
    errors: str

    @property
    def warned(self) -> list[str]:
        """What TraceLens said, in order."""
        return re.findall(r"TraceLens: (.*)", self.errors)


def run(program: str, folder: Path, recorder: str | None, *, prelude: str = PRELUDE) -> Ran:
    """Run a training that begins with the prelude; `recorder` None is without, else TRACELENS_NATIVE."""
    variables = {"FOLDER": str(folder), "RECORDS": "0"}
    if recorder is not None:
        variables |= {"TRACELENS_NATIVE": recorder, "RECORDS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(program)],
        env=clean_environment(**variables) | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Ran(done.stdout, done.returncode, done.stderr)


def harmless(program: str, folder: Path, recorder: str, *, starts: bool = True) -> Ran:
    """Run a training with the recorder, and check that it is as without; return how it went with it.

    With `starts`, recording to FOLDER/trace begins before the program does.
    """
    start = 'if RECORDS: tl.start(FOLDER + "/trace")\n' if starts else ""
    prelude = PRELUDE + start
    unrecorded = _run_unrecorded(program, prelude, folder.parent)
    ran = run(program, folder, recorder, prelude=prelude)
    assert ran.output == unrecorded.output, ran.errors
    assert ran.code == unrecorded.code, ran.errors
    assert ran.errors.count("Traceback") == unrecorded.errors.count("Traceback"), ran.errors
    return ran


@functools.cache
def _run_unrecorded(program: str, prelude: str, beside: Path) -> Ran:
    folder = beside / f"without-{abs(hash(program))}"
    folder.mkdir(exist_ok=True)
    return run(program, folder, None, prelude=prelude)
