"""`tracelens record`: run a training command and record its ranks, without a change to its script."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from argparse import REMAINDER
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.schema.vocabulary import SEGMENTS_SUFFIX, TRACE_SUFFIX

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

NAME: Final = "record"
HELP: Final = "run a training command and record its ranks (no change to its script)"
EXAMPLES: Final = """\
  tracelens record -- torchrun --nproc-per-node 4 train.py
  tracelens record --out traces/today -- mpiexec -n 4 python -m mpi4py train.py
  srun tracelens record -- python train.py
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `record`."""
    parser.add_argument("--out", type=Path, help="trace folder (default: traces/<UTC time>)")
    parser.add_argument("command", nargs=REMAINDER, help="the training command, after --")


def run(arguments: argparse.Namespace) -> int:
    """Run the command, recorded; return its exit code."""
    command = _command(arguments.command)
    folder = (arguments.out or default_folder()).resolve()
    before = set(folder.glob(f"*{TRACE_SUFFIX}"))
    code = _run(command, environment(folder))
    _convert_leftovers(folder)
    recorded = set(folder.glob(f"*{TRACE_SUFFIX}")) - before
    if os.environ.get("TRACELENS_QUIET") != "1":
        _say(folder, recorded, code)
    return code


def default_folder() -> Path:
    """``traces/<UTC time>``, the same for all ranks of one launcher."""
    from tracelens_instrument.environment import default_directory

    return default_directory()


def environment(folder: Path) -> dict[str, str]:
    """Return the environment that makes every Python below record itself into `folder`."""
    import tracelens_instrument

    autoload = Path(tracelens_instrument.__file__).parent / "autoload"
    mine = dict(os.environ)
    paths = [str(autoload), *filter(None, mine.get("PYTHONPATH", "").split(os.pathsep))]
    mine["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    mine["TRACELENS_DIR"] = str(folder)
    mine["TRACELENS_HOOKS"] = "1"
    mine.setdefault("TRACELENS_JOB", mine.get("SLURM_JOB_ID") or uuid.uuid4().hex[:12])
    return mine


def _command(words: Sequence[str]) -> list[str]:
    command = list(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise InvalidArgument(
            "there is no command to record: put it after --, "
            "as in `tracelens record -- torchrun --nproc-per-node 2 train.py`."
        )
    if shutil.which(command[0]) is None:
        raise InvalidArgument(
            f"the command {command[0]!r} was not found: check its spelling, or give its whole path."
        )
    return command


def _run(command: list[str], env: dict[str, str]) -> int:
    """Run to the end and pass signals on; killed by a signal is 128 + its number, as in a shell."""
    with subprocess.Popen(command, env=env) as child:

        def pass_on(number: int, _frame: Any) -> None:
            child.send_signal(number)

        def leave_to_child(_number: int, _frame: Any) -> None:
            """Ctrl-C reaches the whole foreground group by itself."""

        handlers = {
            signal.SIGTERM: pass_on,
            signal.SIGHUP: pass_on,
            signal.SIGINT: leave_to_child,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _convert_leftovers(folder: Path) -> None:
    """Turn what killed ranks left behind into Arrow files."""
    from tracelens.schema.segments import convert, is_live

    for left in sorted(folder.glob(f"*{SEGMENTS_SUFFIX}")):
        try:
            if not is_live(left):
                convert(left)
        except (UnusableInput, OSError) as error:
            sys.stderr.write(f"tracelens: {left.name} stays as it is: {error}\n")


def _say(folder: Path, files: set[Path], code: int) -> None:
    if files:
        processes = f"{len(files)} process{'es' if len(files) > 1 else ''}"
        shown = min(os.path.relpath(folder), str(folder), key=len)
        text = f"recorded {processes} to {shown}; next: tracelens analyze {shown}"
    else:
        text = (
            "nothing was recorded: the command ran no Python that uses torch DDP, mpi4py or "
            "tracelens with this TraceLens installed."
        )
    ended = f" (the command ended with exit code {code})" if code else ""
    sys.stderr.write(f"tracelens: {text}{ended}\n")
