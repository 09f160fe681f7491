"""A verb imports what it needs, so that small runs feel instant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tracelens.cli import COMMANDS

SAMPLES: Final = Path(__file__).parents[2] / "sample_traces"
RUN: Final = """
import json, sys
from tracelens.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:  # after --help
    code = end.code
sys.stderr.write("\\n" + json.dumps([code, sorted(sys.modules)]))
"""
NEVER: Final = {"tracelens_dashboard", "dash", "plotly", "torch", "jsonschema", "scipy"}
MOST_OF_INFO: Final = 60


def imported(*arguments: str) -> set[str]:
    """Return the modules that a process has imported when it has run a verb."""
    command = [sys.executable, "-c", RUN, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return set(names)


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0].startswith("tracelens")}


@pytest.mark.parametrize("form", ["text", "json"])
def test_info_imports_little(form: str) -> None:
    """Files tell it of themselves: no analysis, no frames, no reader of another format, no alignment."""
    names = imported("info", str(SAMPLES / "mpi-late-rank"), "--format", form)
    assert not names & (
        NEVER | {"tracelens.analyses", "tracelens.readers.table", "tracelens.align"}
    )
    assert not names & {"polars", "pyarrow.compute"}
    assert len(ours(names)) <= MOST_OF_INFO, sorted(ours(names))


@pytest.mark.parametrize("sample", ["fsdp-healthy", "ddp-slow-backprop"])
def test_analyze_imports_no_pages(sample: str) -> None:
    """Nor SciPy, which takes as long as all of a small run, nor what prints another format."""
    names = imported("analyze", str(SAMPLES / sample), "--again", "--format", "json")
    assert not names & (NEVER | {"tracelens.readers.table", "tracelens.conversion.segments"})
    assert not names & {"rich", "tracelens.reports.to_text"}


def test_help_of_a_verb_imports_that_verb() -> None:
    """Its own module is all that it takes."""
    names = imported("convert", "--help")
    verbs = {name for name in names if name.startswith("tracelens.cli.")}
    assert verbs == {"tracelens.cli.bug", "tracelens.cli.convert", "tracelens.cli.opening"}


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_imports_no_library_that_computes(verb: str) -> None:
    """Each is imported in `run`, after what says how many threads it starts (`import_libraries`)."""
    assert not imported(verb, "--help") & {"polars", "numpy", "pyarrow", "rich"}


CYCLE: Final = """
import gc, weakref
from tracelens.cli.opening import import_libraries
class Node: pass
import_libraries()
node = Node()
node.itself, left = node, weakref.ref(node)
del node
import_libraries()
gc.collect()
print(left() is None)
"""


def test_what_a_run_left_goes_after_the_next_one_is_opened() -> None:
    """A server opens one after the other; of the first one only the libraries stay for good."""
    done = subprocess.run([sys.executable, "-c", CYCLE], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
