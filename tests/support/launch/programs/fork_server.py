"""Imports modules once and forks the ranks of many programs: their import takes longer than most tests.

A line of standard input describes a program. The answer is a line with the exit codes of its ranks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import warnings
from typing import Any


def run_rank(program: dict[str, Any], rank: int) -> None:
    """Run the program in this process, as a launcher would have started it."""
    os.environ.clear()
    os.environ.update(program["environments"][rank])
    for descriptor, path in enumerate([os.devnull, *program["outputs"][rank]]):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(program["directory"])
    sys.argv = [program["script"]]
    if os.environ.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    if os.environ.get("TRACELENS_HOOKS") == "1":
        from tracelens_instrument import hooks  # noqa: PLC0415 - the environment chooses a recorder

        hooks.install()
    runpy.run_path(program["script"], run_name="__main__")


def main() -> None:
    """Serve until standard input ends; a forked rank leaves when its program ends."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # else each rank would go through all objects of these modules when it ends
    for line in sys.stdin:
        program = json.loads(line)
        pids = []
        for rank in range(len(program["environments"])):
            pid = os.fork()
            if not pid:
                run_rank(program, rank)
                return
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
