"""Turning a recording that has ended into Arrow, without loading anything into the training for it.

Libraries that find too little memory, or may not start their threads, do not fail by an exception: they
end the process, or interrupt it. So the work is done in a process of its own, unless the training has
them loaded and is not short of memory.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Final

from tracelens_instrument import own_python
from tracelens_instrument.descriptors import LimitsAsErrors

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["convert"]

_NEEDED: Final = ("numpy", "pyarrow")
_MEMORY: Final = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
_PROGRAM: Final = (
    "from pathlib import Path; from tracelens.schema.segments import convert; "
    "convert(Path(sys.argv[1]))"
)


def convert(place: Path) -> None:
    """Turn a segments folder into an Arrow file; `place` is the folder, or the note that leads there.

    Raises:
        OSError: it was not done; the segments are as they were.
        UnusableInput: they are damaged.
    """
    if _is_at_hand() or not own_python.is_there():
        from pathlib import Path  # noqa: PLC0415 - the recorder's own are less

        from tracelens.schema.segments import convert as convert_here  # noqa: PLC0415 - see above

        with LimitsAsErrors():
            convert_here(Path(place))
    else:
        _convert_beside(place)


def _is_at_hand() -> bool:
    """Whether all that it needs is there already, memory included."""
    limited = any(resource.getrlimit(what)[0] != resource.RLIM_INFINITY for what in _MEMORY)
    return not limited and all(name in sys.modules for name in _NEEDED)


def _convert_beside(place: Path) -> None:
    # Not by `subprocess`: its import resets that the training ends by Ctrl-C, and so its exit code.
    ours, theirs = os.pipe()
    try:
        child = os.posix_spawn(
            sys.executable,
            own_python.command(_PROGRAM, str(place)),
            own_python.environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, theirs, 2),
            ],
        )
    finally:
        os.close(theirs)
        with open(ours, "rb") as errors:  # noqa: PTH123 - a descriptor
            said = errors.read()
    if _failed(child):
        raise OSError(said.decode(errors="replace").strip().rpartition("\n")[2])


def _failed(child: int) -> bool:
    """Wait for a child; where somebody else waits for all children, its word is not known."""
    try:
        return os.waitpid(child, 0)[1] != 0
    except ChildProcessError:
        return False
