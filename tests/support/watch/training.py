"""A real training in the background that fails as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.launch.record import record_command
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT: Final = Path(__file__).with_name("faulty_ddp.py")


@contextmanager
def training(
    fault: str, folder: Path, *, ranks: int = 2, fault_step: int = 20
) -> Iterator[subprocess.Popen[bytes]]:
    """Record a training in the background; end all its processes afterwards."""
    command = torchrun_command(SCRIPT, ranks, [fault, str(fault_step)])
    with subprocess.Popen(
        record_command("--no-verdict", "--out", folder, "--", *command),
        env=clean_environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as started:
        try:
            yield started
        finally:
            for name in folder.glob("worker-*"):
                with suppress(ValueError, ProcessLookupError):
                    os.kill(int(name.stem.rpartition("-")[2]), signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
