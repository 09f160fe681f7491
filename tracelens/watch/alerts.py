"""Runs a user's command for each alert, with the alert as JSON on its standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tracelens.schema.json_text import dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AlertCommand"]

MAX_SECONDS: Final = 60.0  # seconds: a command that runs longer is ended [policy]
MAX_COMMANDS_AT_ONCE: Final = 8  # commands: further alerts wait until one has ended [policy]


class AlertCommand:
    """Starts a shell command for each alert, and never waits for it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._running: list[tuple[subprocess.Popen[bytes], float]] = []
        self._waiting: list[bytes] = []

    def send(self, alert: Mapping[str, Any]) -> None:
        """Run the command for an alert, now or when others have ended."""
        self._waiting.append(dumps(alert).encode() + b"\n")
        self.advance()

    def advance(self) -> int:
        """Start what waits, and end what takes too long; return how many commands run."""
        for process, deadline_s in list(self._running):
            if process.poll() is None and time.monotonic() > deadline_s:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the shell, and what it started
            if process.poll() is not None:
                self._running.remove((process, deadline_s))
        while self._waiting and len(self._running) < MAX_COMMANDS_AT_ONCE:
            self._start(self._waiting.pop(0))
        return len(self._running)

    def _start(self, text: bytes) -> None:
        """Start the user's command with the text as its input; say so if that fails."""
        with tempfile.TemporaryFile() as file:  # a pipe could be full, and be waited for
            file.write(text)
            file.seek(0)
            try:
                process = subprocess.Popen(  # noqa: S602 - the user's own command line
                    self._command,
                    shell=True,
                    stdin=file,
                    stdout=sys.stderr,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                sys.stderr.write(f"tracelens: --on-alert cannot be run ({error})\n")
                return
        self._running.append((process, time.monotonic() + MAX_SECONDS))
