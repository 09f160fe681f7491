"""The attached objects of this process, and the frameworks that it uses."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from tracelens.schema.launchers import STARTED_PROCESS, StartedProcess, read_launcher
from tracelens_instrument.core.ancestors import is_helper_of_rank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

__all__ = [
    "ATTACHED_VARIABLE",
    "LOADED_BY",
    "RECORDED_TO",
    "STARTED_BY",
    "STARTED_PROCESS",
    "USED",
    "attached",
    "list_ranks",
    "list_unrecorded_frameworks",
    "note_attached",
    "note_recorder",
    "note_started",
    "note_used",
]

ATTACHED_VARIABLE: Final = "TRACELENS_ATTACHED"
USED: Final = "used: "  # how a line begins that names a framework, attached or not
LOADED_BY: Final = "loaded by rank: "  # how a line begins that names a rank that used a framework
STARTED_BY: Final = "started as rank: "  # how a line begins that names a rank whose Python started
RECORDED_TO: Final = "recorded to: "  # how a line begins that names the folder of an inner `record`
# Of these nothing is recorded before something is noted as attached, as "TensorFlow's ...".
_REASONS: Final = {
    "TensorFlow": "no session or ClusterCoordinator trained for some seconds with servers of jobs "
    "named 'worker' and 'ps'",
    "JAX": "no step was marked with jax.profiler.StepTraceAnnotation",
}

_ATTACHED: Final[list[str]] = []


def note_attached(line: str) -> None:
    """Remember that something was attached; report it to `tracelens record`, if that asks."""
    _ATTACHED.append(line)
    _report(line)


def note_used(framework: str) -> None:
    """Report to `tracelens record` that the program has loaded a framework, used or not."""
    _report(f"{USED}{framework}")
    _report_rank(LOADED_BY)


def note_started() -> None:
    """Report to `tracelens record` that the Python of a rank has started, and its process."""
    _report_rank(STARTED_BY)
    launcher = read_launcher(os.environ)
    if launcher is not None and os.environ.get(ATTACHED_VARIABLE) and not is_helper_of_rank():
        rank, world, _ = launcher
        _report(StartedProcess(rank, world, os.getpid(), time.time_ns()).to_line())


def _report_rank(beginning: str) -> None:
    launcher = read_launcher(os.environ)
    if launcher is not None:
        rank, world, _ = launcher
        _report(f"{beginning}{rank}/{world}")


def note_recorder(folder: str) -> None:
    """Report to an outer `tracelens record` that this one records the command, and where."""
    _report(f"{RECORDED_TO}{folder}")


def _report(line: str) -> None:
    report_path = os.environ.get(ATTACHED_VARIABLE)
    if report_path:
        with contextlib.suppress(OSError):  # on another host there is no such file
            _append(report_path, f"{line}\n".encode())


def _append(path: str, line: bytes) -> None:
    """Add a line in one write, so that those of several ranks do not mix; never make the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def list_unrecorded_frameworks(reported_lines: Sequence[str]) -> list[str]:
    """Return a sentence for each framework that was used and not recorded.

    `reported_lines` are what the training's processes noted as used and as attached.
    """
    return [
        f"{framework} was used, nothing of it is recorded: {reason}"
        for framework, reason in _REASONS.items()
        if f"{USED}{framework}" in reported_lines
        and not any(line.startswith(f"{framework}'s ") for line in reported_lines)
    ]


def list_ranks(reported_lines: Sequence[str], beginning: str) -> tuple[list[int], int]:
    """Return the ranks of lines that begin so, and their world; without a launcher that is 0.

    `reported_lines` are what the training's processes reported.
    """
    pairs = [
        line.removeprefix(beginning).split("/")
        for line in reported_lines
        if line.startswith(beginning)
    ]
    world = max((int(world) for _, world in pairs), default=0)
    return sorted({int(rank) for rank, _ in pairs}), world


def attached() -> list[str]:
    """What has been attached in this process, in words."""
    return list(_ATTACHED)
