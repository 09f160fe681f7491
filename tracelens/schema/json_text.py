"""JSON as TraceLens writes and reads it: one compact line, and nothing nested without end."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

dumps: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode


def loads(text: str | bytes) -> Any:
    """Parse a JSON text; all readers of files use this function.

    Raises:
        ValueError: it is no JSON, or nested deeper than anything that TraceLens writes.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
