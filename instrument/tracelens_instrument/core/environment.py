"""What the recorder reads from the environment, and what it leaves there for processes it spawns."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tracelens.schema.host import process_started_ns
from tracelens_instrument.core.identity import PARENT_VARIABLE, read_launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from tracelens_instrument.core.identity import Identity

__all__ = [
    "ALL_RANKS_VARIABLE",
    "DIRECTORY_VARIABLE",
    "KEEP_SIGNAL_VARIABLE",
    "RATE_VARIABLE",
    "default_directory",
    "mark_for_children",
    "restore",
    "wanted_directory",
]

DIRECTORY_VARIABLE: Final = "TRACELENS_DIR"
KEEP_SIGNAL_VARIABLE: Final = "TRACELENS_KEEP_SIGNAL"
RATE_VARIABLE: Final = "TRACELENS_SAMPLE"  # of stacks, Hz
ALL_RANKS_VARIABLE: Final = "TRACELENS_ALL_RANKS"  # set where one `record` is around the launcher

_earlier_values: dict[str, str | None] = {}  # by variable; None: it was not set


def wanted_directory() -> Path | None:
    """Return the trace folder that the environment names, or None."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    return Path(named) if named else None


def default_directory() -> Path:
    """Return the default trace folder: equal for ranks of one launcher on one host."""
    has_launcher = read_launcher(os.environ) is not None
    launcher_start_ns = process_started_ns(os.getppid()) if has_launcher else None
    wall_s = time.time() if launcher_start_ns is None else launcher_start_ns // 10**9
    return Path("traces") / time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(wall_s))


def mark_for_children(
    directory: Path, identity: Identity, retention_variables: Mapping[str, str]
) -> None:
    """Set variables so that spawned processes record to the same folder, as children of this one.

    `retention_variables` say how much is kept. `restore` takes all back.
    """
    variables = {
        DIRECTORY_VARIABLE: str(directory),
        PARENT_VARIABLE: identity.encode_for_children(os.getpid()),
        **retention_variables,
    }
    for name, value in variables.items():
        _earlier_values.setdefault(name, os.environ.get(name))
        os.environ[name] = value


def restore() -> None:
    """Restore the environment to what it was before `mark_for_children`."""
    for name, earlier_value in _earlier_values.items():
        if earlier_value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = earlier_value
    _earlier_values.clear()
