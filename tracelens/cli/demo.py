"""`tracelens demo`: record a real training with a planted slow rank, explain it, show it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from tracelens.cli import analyze, record, serve
from tracelens.errors import InvalidArgument, MissingExtra

NAME: Final = "demo"
HELP: Final = "record a real 4-rank MPI training with a planted slow rank, analyze it, serve it"
EXAMPLES: Final = """\
  tracelens demo
  tracelens demo --no-serve --slow-rank 1 --slow-phase forward
"""
STEPS: Final = 120
SLOW_STEPS: Final = "40:99"
SLOW_MS: Final = 40


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    parser.add_argument("--out", type=Path, help="trace folder (default: traces/<UTC time>)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slow-rank", type=int, default=2)
    parser.add_argument("--slow-phase", default="backprop")
    parser.add_argument("--no-serve", action="store_true", help="end after the verdict")
    parser.add_argument("--port", type=int, default=8050)


def run(arguments: argparse.Namespace) -> int:
    """Run what a user would: record, analyze, serve."""
    folder = arguments.out or record.default_folder()
    print(  # noqa: T201  the demo talks to its user
        f"Training on {arguments.ranks} MPI ranks; rank {arguments.slow_rank} gets {SLOW_MS} ms of "
        f"extra work in {arguments.slow_phase}, steps {SLOW_STEPS.replace(':', '-')}.",
        flush=True,
    )
    command = _make_training_command(arguments)
    exit_code = _run_verb(record, "--no-verdict", "--out", str(folder), "--", *command)
    if exit_code:
        return exit_code
    _run_verb(analyze, str(folder))
    if arguments.no_serve:
        return 0
    return _run_verb(serve, str(folder), "--port", str(arguments.port))


def _run_verb(verb: Any, *words: str) -> int:
    """Run another verb as its own command line would, with its own defaults."""
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    code: int = verb.run(parser.parse_args(words))
    return code


def _make_training_command(arguments: argparse.Namespace) -> list[str]:
    """Return the command that trains on MPI ranks with the planted fault."""
    launcher = [str(_find_launcher()), "-n", str(arguments.ranks)]
    script = [sys.executable, "-m", "mpi4py", str(_find_example("mpi_allreduce.py"))]
    fault = {"rank": arguments.slow_rank, "phase": arguments.slow_phase, "steps": SLOW_STEPS}
    options = [f"--slow-{key}={value}" for key, value in {**fault, "ms": SLOW_MS}.items()]
    return [*launcher, *script, f"--steps={STEPS}", *options]


def _find_launcher() -> Path:
    """The mpiexec that belongs to this Python's MPI (another one ahead in PATH would be wrong)."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        raise MissingExtra.from_extra("`tracelens demo`", "demo")
    return mpiexec


def _find_example(name: str) -> Path:
    """Find an example in the folder of the installed recorder, or in a checkout."""
    import tracelens_instrument

    package = Path(tracelens_instrument.__file__).parent
    for folder in (package / "examples", package.parent / "examples"):
        if (folder / name).exists():
            return folder / name
    raise InvalidArgument(f"the example {name} is not installed: run the demo from a checkout")
