"""Paths that cost little to import, for what the recorder needs at its start.

For type checkers they are those of the standard library, which takes 7 ms to import with what it needs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
else:
    from tracelens.schema._light_path import Path

__all__ = ["Path"]
