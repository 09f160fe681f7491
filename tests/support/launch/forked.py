"""Runs programs in forks of a process that has imported what they need: see `fork_server.py`."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.launch import torchrun
from support.launch.record import record_command
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command

if TYPE_CHECKING:
    from collections.abc import Callable

    RunRanks = Callable[..., subprocess.CompletedProcess[str]]

SERVER = Path(__file__).parent / "programs" / "fork_server.py"


# Converting a recording imports the first two; making an optimizer imports Dynamo.
TORCH = ("numpy", "pyarrow", "torch._dynamo", "torch.nn.parallel", "torch.utils.data")
MPI = ("numpy", "pyarrow", "mpi4py")


class ForkServer:
    """A process that has imported modules."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), *modules],
            env=clean_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def run(
        self,
        program: Path | str,
        ranks: int = 1,
        trace: Path | None = None,
        *,
        hooks: bool = False,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script, or code, in `ranks` processes, which record to `trace`, and wait for it.

        With `hooks`, they record what `tracelens record` would.
        """
        if trace is not None:
            variables |= {"TRACELENS_DIR": str(trace), "TRACELENS_HOOKS": str(int(hooks))}
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "program.py"
            if isinstance(program, str):
                script.write_text(program)
            else:
                script = program
            outputs = [[f"{folder}/{rank}.out", f"{folder}/{rank}.err"] for rank in range(ranks)]
            codes = self._ask(
                script=str(script),
                directory=folder,
                outputs=outputs,
                environments=_environments(ranks, variables),
            )
            stdout, stderr = ("".join(map(_read, paths)) for paths in zip(*outputs, strict=True))
        assert codes == [0] * ranks, stderr
        return subprocess.CompletedProcess([str(script)], 0, stdout, stderr)

    def _ask(self, **program: object) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        """End it, and what it has forked."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def _read(path: str) -> str:
    return Path(path).read_text()


def _environments(ranks: int, variables: dict[str, str]) -> list[dict[str, str]]:
    """Return the environment of each rank; a single process has no rank."""
    environment = clean_environment(OMP_NUM_THREADS="1", **variables)
    if ranks == 1:
        return [environment]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        environment | world | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(ranks)
    ]


@functools.cache
def running_server(*modules: str) -> ForkServer:
    """Start a server once for all tests; it ends with them."""
    server = ForkServer(*modules)
    atexit.register(server.close)
    return server


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """A process that has imported PyTorch."""
    pytest.importorskip("torch")
    return running_server(*TORCH)


@pytest.fixture(scope="session")
def run_ranks(request: pytest.FixtureRequest) -> RunRanks:
    """Run a script in several ranks: "forked" by `ForkServer.run`, or "launched" by torchrun."""
    if request.param == "launched":
        return _launch
    server: ForkServer = request.getfixturevalue("fork_server")
    return server.run


def _launch(
    program: Path | str,
    ranks: int = 1,
    trace: Path | None = None,
    *,
    hooks: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    command = torchrun_command(Path(program), ranks)
    if not hooks:
        return torchrun.run_ranks(command, trace, **variables)
    record = record_command("--no-verdict", "--out", trace, "--", *command)
    return torchrun.run_ranks(record, None, **variables)
