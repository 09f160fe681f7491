"""Which of the two recorders serves: the one in C, or the one in Python that does the same.

The choice is made here and nowhere else, when the recorder is imported.
"""

from __future__ import annotations

import os
import sysconfig
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["NATIVE", "backend"]

_SWITCH: Final = "TRACELENS_NATIVE"


def _choose() -> tuple[ModuleType | None, str]:
    if os.environ.get(_SWITCH) == "0":
        return None, f"{_SWITCH}=0 asks for it"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None, "this Python is free-threaded, and the native recorder relies on the GIL"
    try:
        from tracelens_instrument import _native  # noqa: PLC0415 - it may not be there
    except ImportError as error:
        return None, f"the native recorder cannot be loaded ({error})"
    return _native, "it is there and may be used"


NATIVE, _WHY = _choose()


def backend() -> tuple[str, str]:
    """Return which recorder is in use, ``native`` or ``python``, and why."""
    return "python" if NATIVE is None else "native", _WHY
