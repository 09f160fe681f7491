"""How much of the files that are mapped this process has in its memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def mapped_bytes() -> int:
    """Return the resident bytes of mapped files; 0 where the system does not say."""
    try:
        shared = _STATM.read_text().split()[2]
    except OSError:
        return 0
    return int(shared) * os.sysconf("SC_PAGE_SIZE")
