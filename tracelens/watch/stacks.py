"""Stacks of processes, taken by py-spy from outside, each in a process of its own with a time limit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from tracelens.schema.json_text import loads

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["StackDumps", "Stacks"]

# seconds: py-spy is ended if it takes longer for one process [chosen; one decision in
# StackDumps._start, StackDumps.advance]
TIME_LIMIT_S: Final = 10.0
MAX_DUMPS_AT_ONCE: Final = 2  # py-spy processes: reading symbols takes much of a core [policy]
MAX_FRAMES: Final = 60  # frames: the innermost ones of a thread are kept [policy]
# Options, one set after the other: where another debugger holds the process, it can only be read.
_ATTEMPTS: Final = (("--native",), (), ("--nonblocking",))
_QUICK_ATTEMPTS: Final = (("--nonblocking",), ())
_PREFIX: Final = re.compile(r"Error: |\s*\d+: ")
_POLL_EVERY_S: Final = 0.02  # seconds: the end of a quick dump is looked for so often [policy]
_MAX_BYTES: Final = 1 << 24  # bytes: no more of the output of one dump is read [policy]


@dataclass(frozen=True)
class Stacks:
    """Frames by process, innermost first, and the reasons for missing frames."""

    frames: dict[str, list[str]]
    reasons: dict[str, str]


@dataclass(eq=False)
class _Dump:
    """A running py-spy of one process."""

    label: str
    pid: int
    attempt: int
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]
    deadline_s: float


class StackDumps:
    """Takes stacks of some processes while the watch goes on; its methods raise nothing."""

    def __init__(self, pids: Mapping[str, int], *, is_quick: bool = False) -> None:
        """Begin, if py-spy is installed.

        Args:
            pids: The processes, by a label that is theirs in the outcome.
            is_quick: Without native frames, which take seconds.
        """
        self._attempts = _QUICK_ATTEMPTS if is_quick else _ATTEMPTS
        self._program = _find_program()
        self._waiting = [(label, pid, 0) for label, pid in pids.items()]
        self._running: list[_Dump] = []
        self._frames: dict[str, list[str]] = {}
        self._reasons: dict[str, str] = {}
        if self._program is None:
            reason = "py-spy is not installed (pip install py-spy)"
            self._reasons = dict.fromkeys(pids, reason)
            self._waiting = []
        self.advance()

    def advance(self) -> Stacks | None:
        """Start what may be started and read what is done; the outcome when all is done."""
        for dump in list(self._running):
            if dump.process.poll() is not None:
                self._finish(dump)
            elif time.monotonic() > dump.deadline_s:
                dump.process.kill()
                dump.process.wait()
                self._finish(dump, f"py-spy took longer than {TIME_LIMIT_S:.0f} s")
        while self._waiting and len(self._running) < MAX_DUMPS_AT_ONCE:
            self._start(*self._waiting.pop(0))
        return None if self._running or self._waiting else Stacks(self._frames, self._reasons)

    def wait(self, timeout_s: float) -> None:
        """Wait for the outcome, for at most `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while self.advance() is None and time.monotonic() < end_s:
            time.sleep(_POLL_EVERY_S)

    def stop(self, reason: str) -> Stacks:
        """End what still runs, and give a reason for what is missing; return the outcome."""
        for dump in self._running:
            dump.process.kill()
            dump.process.wait()
            dump.output.close()
            dump.errors.close()
        for label in [*(dump.label for dump in self._running), *(w[0] for w in self._waiting)]:
            self._reasons[label] = reason
        self._running, self._waiting = [], []
        return Stacks(self._frames, self._reasons)

    def _start(self, label: str, pid: int, attempt: int) -> None:
        """Start py-spy with the options of an attempt."""
        assert self._program is not None
        command = [self._program, "dump", "--json", "--pid", str(pid)]
        output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - see _finish
        try:
            process = subprocess.Popen(
                [*command, *self._attempts[attempt]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            self._reasons[label] = f"py-spy cannot be started ({error.strerror})"
            return
        deadline_s = time.monotonic() + TIME_LIMIT_S
        self._running.append(_Dump(label, pid, attempt, process, output, errors, deadline_s))

    def _finish(self, dump: _Dump, failure: str = "") -> None:
        """Read the frames of a dump that has ended; without any, try again with other options."""
        self._running.remove(dump)
        with dump.output as output, dump.errors as errors:
            output.seek(0)
            errors.seek(0)
            frames = {} if failure else _parse(output.read(_MAX_BYTES), dump.label, dump.pid)
            messages = errors.read(_MAX_BYTES).decode(errors="replace").strip().splitlines()
        if frames:
            self._frames |= frames
        elif dump.attempt + 1 < len(self._attempts):
            self._waiting.insert(0, (dump.label, dump.pid, dump.attempt + 1))
        else:
            self._reasons[dump.label] = failure or _explain(messages)


def _find_program() -> str | None:
    """Return the path of py-spy: next to this Python, or on the path."""
    sibling = Path(sys.executable).with_name("py-spy")
    return str(sibling) if sibling.exists() else shutil.which("py-spy")


def _explain(messages: list[str]) -> str:
    """Return the reason of a failure, from the messages of py-spy."""
    causes = []
    for line in messages:
        if line.startswith("Stack backtrace"):
            break
        cause = _PREFIX.sub("", line).strip()
        if cause and cause != "Caused by:" and cause not in causes:
            causes.append(cause)
    text = ": ".join(causes) or "it wrote nothing"
    if any(word in text for word in ("ermission", "EPERM", "not permitted")):
        return f"py-spy may not look into the process: {text} (docs/watch.md)"
    return f"py-spy failed: {text}"


def _parse(content: bytes, label: str, pid: int) -> dict[str, list[str]]:
    """Return the frames of the main thread, and of another thread that holds the GIL."""
    try:
        threads: list[dict[str, Any]] = loads(content)
        stacks = {}
        for thread in threads:
            frames = [_write_frame(frame) for frame in thread["frames"][:MAX_FRAMES]]
            if thread.get("os_thread_id") == pid or len(threads) == 1:
                stacks[label] = frames
            elif thread.get("owns_gil"):
                stacks[f"{label} thread {thread.get('thread_name') or '?'} (holds the GIL)"] = (
                    frames
                )
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: frames for name, frames in stacks.items() if frames}


def _write_frame(frame: dict[str, Any]) -> str:
    file = frame.get("short_filename") or frame.get("filename") or "?"
    line = frame.get("line")
    location = f"{file}:{line}" if line else str(file)
    return f"{frame['name']} ({location})"
