"""The watch of a launcher's parent: it looks between two waits, and tells alarms on standard error."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from tracelens.watch.output import Lines
from tracelens.watch.watcher import Watcher

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.life import Exited
    from tracelens.watch.alerts import AlertCommand

__all__ = ["Looks"]

LOOK_EVERY_S: Final = 1.0  # seconds: a job is looked at so often, if need be [policy]


class Looks:
    """Called between two waits; a failure of its own ends it, and not the command."""

    def __init__(self, folder: Path, alert_command: AlertCommand | None) -> None:
        self._watcher: Watcher | None = Watcher(folder, alert_command, is_parent=True)
        self._show = Lines(sys.stderr, prefix="tracelens: ")
        self._due_s = time.monotonic()

    def __call__(self, ended_processes: list[Exited]) -> None:
        """Take note of processes that have ended, and look if it is time."""
        if ended_processes or time.monotonic() >= self._due_s:
            self._look(ended_processes)
            self._due_s = time.monotonic() + LOOK_EVERY_S

    def close(self) -> None:
        """Report what is left."""
        self._look([])
        if self._watcher is not None:
            self._show(self._watcher, self._watcher.close())

    def _look(self, ended_processes: list[Exited]) -> None:
        if self._watcher is None:
            return
        try:
            self._watcher.add_ends(ended_processes)
            self._show(self._watcher, self._watcher.look_if_needed())
        except Exception as error:  # noqa: BLE001 - whatever it is, the command goes on
            sys.stderr.write(f"tracelens: the watch has failed and ends ({error!r})\n")
            self._watcher = None
