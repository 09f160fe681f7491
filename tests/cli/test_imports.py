"""A verb imports what it needs, so that small runs feel instant."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from tracelens.cli import COMMANDS

SAMPLES: Final = Path(__file__).parents[2] / "sample_traces"
# Runs each verb of a list, prints its exit code, and at last the modules that are imported then.
RUN: Final = """
import contextlib, io, json, sys
from tracelens.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    for words in json.loads(sys.argv[1]):
        try:
            code = main(words)
        except SystemExit as end:  # after --help
            code = end.code
        assert code == 0, words
print(json.dumps(sorted(sys.modules)))
"""
PAGES: Final = {"tracelens_dashboard", "dash", "plotly"}
COMPUTING: Final = {"polars", "numpy", "pyarrow", "rich", "scipy", "torch"}


def modules_imported_by(*commands: list[str]) -> set[str]:
    """Return the modules that a process has imported when it has run some verbs."""
    command = [sys.executable, "-c", RUN, json.dumps(commands)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_info_imports_no_library_of_tables() -> None:
    """The files' own summaries suffice."""
    names = modules_imported_by(["info", str(SAMPLES / "mpi-late-rank")])
    assert not names & (PAGES | {"polars", "scipy", "torch"})


def test_analyze_imports_no_pages() -> None:
    """Nor SciPy, which takes as long as all of a small run."""
    names = modules_imported_by(
        ["analyze", str(SAMPLES / "ddp-slow-backprop"), "--again", "--format", "json"]
    )
    assert not names & (PAGES | {"scipy", "torch"})


def test_help_imports_no_library_that_computes() -> None:
    """Each is imported in `run`, after what says how many threads it starts (`import_libraries`)."""
    assert not modules_imported_by(*([verb, "--help"] for verb in COMMANDS)) & (PAGES | COMPUTING)


CYCLE: Final = """
import gc, weakref
from tracelens.cli.runs import import_libraries
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
    """A server that opens run after run keeps nothing of the first one but libraries."""
    done = subprocess.run([sys.executable, "-c", CYCLE], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
