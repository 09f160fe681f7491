"""Run a command whose monotonic clock is shifted: ``shift_clock.py SECONDS COMMAND...``; needs root.

As ``unshare --time --monotonic``, but also by fractions of a second.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

CLONE_NEWTIME: Final = 0x80
BILLION: Final = 10**9


def main() -> None:
    """Make a time namespace, which begins with the command."""
    seconds, nanoseconds = divmod(round(float(sys.argv[1]) * BILLION), BILLION)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWTIME):
        reason = os.strerror(ctypes.get_errno())
        raise SystemExit(f"a clock cannot be shifted here (time namespace: {reason})")
    Path("/proc/self/timens_offsets").write_text(f"monotonic {seconds} {nanoseconds}\n")
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the caller's own command line


if __name__ == "__main__":
    main()
