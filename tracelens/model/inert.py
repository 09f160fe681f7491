"""Recorded names as text that does nothing where it is shown."""

from __future__ import annotations

import unicodedata

__all__ = ["clean"]


def clean(text: str) -> str:
    """Make control and direction characters of recorded names visible, so that none acts."""
    return "".join(
        c if not unicodedata.category(c).startswith("C") else f"\\x{ord(c):02x}" for c in text
    )
