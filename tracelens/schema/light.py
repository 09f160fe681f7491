"""Frozen dataclasses that cost little to import and define, for what the recorder needs at its start.

For type checkers they are those of the standard library, which takes 10 ms to import and define a dozen.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes a while, too
if TYPE_CHECKING:
    from dataclasses import asdict, dataclass, field, replace
else:
    from tracelens.schema._light import asdict, dataclass, field, replace

__all__ = ["asdict", "dataclass", "field", "replace"]
