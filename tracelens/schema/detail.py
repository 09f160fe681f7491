"""The request for more detail: a file of the trace folder that running recorders look for.

`tracelens detail` writes it, and each recorder reads it between two steps. It holds wall times at which
all ranks begin and end together, in the same step, or one apart.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass

from tracelens.schema.gate import open_regular
from tracelens.schema.json_text import dumps, loads
from tracelens.schema.vocabulary import DETAILS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

__all__ = ["MAX_SAMPLING_HZ", "REQUEST_FILE", "DetailRequest", "read_request", "write_request"]

REQUEST_FILE: Final = "detail.request"
MAX_SAMPLING_HZ: Final = 1000  # samples a second: more are refused [what py-spy can do]
_MAX_BYTES: Final = 4096
_INTEGER_LIMIT: Final = 1 << 63


@dataclass(frozen=True)
class DetailRequest:
    """Record at `level` from `begin_ns` to `end_ns`, wall time, and sample stacks at `sampling_hz`.

    `level` is a level of `DETAILS`, null for the recording's own; `sampling_hz` is null for no stacks.
    """

    begin_ns: int
    end_ns: int
    level: str | None = None
    sampling_hz: int | None = None


def write_request(folder: Path, request: DetailRequest) -> None:
    """Ask all recorders of a trace folder; a request that was there before is replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / REQUEST_FILE
    new_path = path.with_suffix(f".{os.getpid()}")
    try:
        new_path.write_text(dumps(asdict(request)))
        new_path.replace(path)
    finally:
        new_path.unlink(missing_ok=True)


def read_request(folder: Path) -> DetailRequest | None:
    """Return the request of a trace folder; None if it is missing or invalid."""
    with suppress(OSError, ValueError, TypeError):
        with open_regular(folder / REQUEST_FILE) as stream:
            request = DetailRequest(**loads(stream.read(_MAX_BYTES)))
        return request if _is_sound(request) else None
    return None


def _is_sound(request: DetailRequest) -> bool:
    has_times = all(
        type(time_ns) is int and 0 <= time_ns < _INTEGER_LIMIT
        for time_ns in (request.begin_ns, request.end_ns)
    )
    has_rate = request.sampling_hz is None or (
        type(request.sampling_hz) is int and 0 < request.sampling_hz <= MAX_SAMPLING_HZ
    )
    return has_times and has_rate and (request.level is None or request.level in DETAILS)
