"""Names for those who do not see the page."""

from __future__ import annotations

from typing import Any


def aria(label: str) -> dict[str, Any]:
    """Return the property that names a component."""
    return {"aria-label": label}
