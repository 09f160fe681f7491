"""JSON that costs little to import, for the short lines that the recorder writes, and reads again."""

from __future__ import annotations

try:
    from _json import encode_basestring_ascii as _quoted  # json itself takes 3 ms, and uses this
except ImportError:  # another Python
    from json.encoder import encode_basestring_ascii as _quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["dumps", "loads"]


def dumps(value: Any) -> str:
    """Return `value` as compact JSON, as `json` does, which is asked about what is seldom."""
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(dumps, value))}]"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return _object(value)
    import json  # noqa: PLC0415 - see above

    return json.dumps(value, separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    """Return what a JSON text says; whoever reads files takes it from here.

    Raises:
        ValueError: it is no JSON, or nested deeper than anything that TraceLens writes.
    """
    import json  # noqa: PLC0415 - see above

    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _object(row: Mapping[str, Any]) -> str:
    return f"{{{','.join(f'{_quoted(key)}:{dumps(value)}' for key, value in row.items())}}}"
