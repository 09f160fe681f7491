"""The attached objects of this process, and the frameworks that it uses."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

__all__ = [
    "ATTACHED_VARIABLE",
    "RECORDED_TO",
    "USED",
    "attached",
    "note_attached",
    "note_recorder",
    "note_used",
    "unrecorded",
]

ATTACHED_VARIABLE: Final = "TRACELENS_ATTACHED"
USED: Final = "used: "  # how a line begins that names a framework, attached or not
RECORDED_TO: Final = "recorded to: "  # how a line begins that names the folder of an inner `record`
# Of these nothing is recorded before something is noted as attached, as "TensorFlow's ...".
_NEEDED: Final = {
    "TensorFlow": "no session or ClusterCoordinator trained for some seconds with servers of jobs "
    "named 'worker' and 'ps'",
    "JAX": "no step was marked with jax.profiler.StepTraceAnnotation",
}

_ATTACHED: Final[list[str]] = []


def note_attached(words: str) -> None:
    """Remember that something was attached, for later questions about the recording.

    `tracelens record` asks by a file that it names in the environment.
    """
    _ATTACHED.append(words)
    _report(words)


def note_used(framework: str) -> None:
    """Report to `tracelens record` that the program has loaded a framework, used or not."""
    _report(f"{USED}{framework}")


def note_recorder(folder: str) -> None:
    """Report to an outer `tracelens record` that this one records the command, and where."""
    _report(f"{RECORDED_TO}{folder}")


def _report(words: str) -> None:
    asking = os.environ.get(ATTACHED_VARIABLE)
    if asking:
        with contextlib.suppress(OSError):  # on another host there is no such file
            _append(asking, f"{words}\n".encode())


def _append(path: str, line: bytes) -> None:
    """Add a line in one write, so that those of several ranks do not mix; never make the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def unrecorded(reported: Sequence[str]) -> list[str]:
    """Return a sentence for each framework that was used and not recorded."""
    return [
        f"{framework} was used, nothing of it is recorded: {reason}"
        for framework, reason in _NEEDED.items()
        if f"{USED}{framework}" in reported
        and not any(words.startswith(f"{framework}'s ") for words in reported)
    ]


def attached() -> list[str]:
    """What has been attached in this process, in words."""
    return list(_ATTACHED)
