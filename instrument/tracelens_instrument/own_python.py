"""Python processes of the recorder's own, with the packages of the training and none of its settings."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

__all__ = ["command", "environment", "is_there"]

_PYTHONS: Final = ("python", "pypy")
_FEW_THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_LITTLE_MEMORY: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
_FIND: Final = "import sys; sys.path[:0] = sys.argv[{}:]; "


def is_there() -> bool:
    """Whether this runs in a Python that can be started again, and not in a program made of one."""
    name = (
        (sys.executable or "").rpartition("/")[2].rstrip("t").rstrip("0123456789.")
    )  # python3.13t
    return name in _PYTHONS and not getattr(sys, "frozen", False)


def command(program: str, *arguments: str) -> list[str]:
    """Return what runs `program` with `arguments` and the packages that this process finds."""
    paths = [os.path.abspath(path) for path in sys.path if path]  # noqa: PTH100 - of texts
    find = _FIND.format(1 + len(arguments))
    return [sys.executable, "-I", "-S", "-c", find + program, *arguments, *paths]


def environment() -> dict[str, str]:
    """Return the training's environment without what would make the process record, or be recorded."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TRACELENS_") and name != "LD_PRELOAD"
    }
    return kept | _FEW_THREADS | _LITTLE_MEMORY
