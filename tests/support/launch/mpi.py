"""MPI programs for tests, each in processes of its own: MPI cannot be begun twice in one."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.launch.forked import MPI, running_server
from support.launch.recording import Recorded, read_all, read_one, run_command

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

    Calls = Mapping[str, tuple[str, int | None]]

MPIEXEC = Path(sys.executable).parent / "mpiexec"

PRELUDE = """
import functools
import json
import numpy as np
import tracelens as tl
from mpi4py import MPI

comm = tl.attach(MPI.COMM_WORLD)

class Plain:
    '''The methods of `comm` as they are where nothing records.'''
    def __getattr__(self, name):
        found = getattr(comm, name)
        original = getattr(getattr(found, "__func__", None), "__wrapped__", None)
        return found if original is None else functools.partial(original, comm)

plain = Plain()
"""

# As under `tracelens record`.
HOOKED = """
from tracelens_instrument import hooks
hooks.install()
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
"""

CALLING = """
def call_all(communicators, room):
    found = {}
    for name, call in CALLS.items():
        results = []
        for c in communicators:
            a, b = np.arange(4.0), np.full(room, 7.0)
            result = eval(f"c.{name}{call}")
            if isinstance(result, MPI.Request):
                result = result.Wait()
            results.append([result, a.tolist(), b.tolist()])
        found[name] = results
    return found
"""


def in_all_ways(buffers: Calls, objects: Mapping[str, str]) -> dict[str, tuple[str, int | None]]:
    """Return how to call methods: of buffers, also without blocking, and of objects."""
    of_objects = {name: (call, None) for name, call in objects.items()}
    return {**buffers, **of_objects, **{f"I{name.lower()}": call for name, call in buffers.items()}}


def run_calls(calls: Calls, code: str, trace: Path) -> tuple[dict[str, Any], Recorded]:
    """Run code after PRELUDE that prints what `call_all` of these calls returns."""
    said = {name: call for name, (call, _) in calls.items()}
    return run_alone(f"CALLS = {said!r}\n{CALLING}{code}", trace), read_one(trace)


def run_alone(code: str, trace: Path) -> Any:
    """Run code after PRELUDE in one process that records; return the JSON that it prints."""
    output = running_server(*MPI).run(PRELUDE + textwrap.dedent(code), trace=trace).stdout
    return json.loads(output) if output.strip() else None


def run_forked(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in one process that has imported mpi4py but not begun MPI."""
    return running_server(*MPI).run(textwrap.dedent(code), 1, None, hooks=False, **variables)


def run_apart(code: str, trace: Path, wrappers: Sequence[Sequence[str]]) -> str:
    """Run code after PRELUDE with a rank under each wrapper command; return what they print."""
    script = _script(code, trace)
    parts = [["-n", "1", *wrapper, *_python(script)] for wrapper in wrappers]
    command = [word for part in parts for word in (":", *part)][1:]
    return _run([str(MPIEXEC), *command], trace)


def run_ranks(code: str, trace: Path, ranks: int = 3) -> str:
    """Run code after PRELUDE as several ranks that record; return what they print."""
    return _run(launch(_script(code, trace), ranks), trace)


def run_recorded(code: str, trace: Path, ranks: int) -> list[Recorded]:
    """Run code as several ranks of which everything is recorded; return what of each."""
    script = trace.parent / "ranks.py"
    script.write_text(HOOKED + textwrap.dedent(code))
    _run(launch(script, ranks), trace)
    return read_all(trace)


def launch(script: Path, ranks: int) -> list[str]:
    """Return the command that starts a script as several ranks."""
    return [str(MPIEXEC), "-n", str(ranks), *_python(script)]


def _python(script: Path) -> list[str]:
    """Return the command of a rank; with ``-m mpi4py`` one that fails ends the others, too."""
    return [sys.executable, "-m", "mpi4py", str(script)]


def _script(code: str, trace: Path) -> Path:
    script = trace.parent / "ranks.py"
    script.write_text(PRELUDE + textwrap.dedent(code))
    return script


def _run(command: list[str], trace: Path) -> str:
    done = run_command(command, {"TRACELENS_DIR": str(trace)}, cwd=trace.parent)
    return done.stdout
