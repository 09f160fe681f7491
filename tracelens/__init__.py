"""TraceLens: records, aligns, explains and shows where distributed training loses its time."""

from __future__ import annotations

__version__ = "0.1.0"
