"""Which of the two recorders serves: the one in C, or the one in Python that does the same.

The choice is made here and nowhere else, when the recorder is imported.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

__all__ = ["FREE_THREADED", "NATIVE", "backend"]

FREE_THREADED: Final = "t" in getattr(sys, "abiflags", "")  # sysconfig takes long

_SWITCH: Final = "TRACELENS_NATIVE"
_REVISION: Final = 8  # of what both parts expect of each other, as in native/base.h


def _choose() -> tuple[bool, str]:
    if os.environ.get(_SWITCH) == "0":
        return False, f"{_SWITCH}=0 asks for it"
    if FREE_THREADED:
        return False, "this Python is free-threaded, and the native recorder relies on the GIL"
    try:
        import tracelens_instrument._native as native  # noqa: PLC0415 - only if it may be used
    except ModuleNotFoundError:
        return (
            False,
            "the native recorder was not built when this was installed: was there a C compiler?",
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the one in Python serves
        return False, f"the native recorder cannot be loaded ({error})"
    if getattr(native, "REVISION", 1) != _REVISION:
        return False, "the native recorder was built from other sources: install again"
    return True, "it is there and may be used"


NATIVE, _WHY = _choose()


def backend() -> tuple[str, str]:
    """Return the recorder in use, ``native`` or ``python``, and the reason."""
    return "native" if NATIVE else "python", _WHY
