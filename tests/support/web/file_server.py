"""A real web server for the files of a folder: with ranges or without, watched, and broken on demand."""

from __future__ import annotations

import http.server
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Behaviour", "serving"]


@dataclass
class Behaviour:
    """How the server behaves, and what it was asked for."""

    ranges: bool = False
    page: str | None = None  # instead of its own lists of files
    refuses: bool = False
    cuts: str | None = None  # files with this in their name end in the middle
    bodies: list[tuple[str, int]] = field(default_factory=list)  # what was sent: path, bytes

    def sent(self, part: str = "") -> int:
        """Count the bytes that were sent of files with this in their name."""
        return sum(count for path, count in self.bodies if part in path)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, behaviour: Behaviour, **more: Any) -> None:
        self.behaviour = behaviour
        super().__init__(*arguments, **more)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass

    def do_HEAD(self) -> None:
        if self._may():
            super().do_HEAD()

    def do_GET(self) -> None:
        if not self._may():
            return
        content = self._content()
        if content is None:
            super().do_GET()
        else:
            self._send(content)

    def _may(self) -> bool:
        if self.behaviour.refuses:
            self.send_error(403)
        return not self.behaviour.refuses

    def _content(self) -> bytes | None:
        """Return what a file or the page that stands for lists holds; None to let Python serve it."""
        if self.behaviour.page is not None and self.path.endswith("/"):
            return self.behaviour.page.encode()
        try:
            with open(self.translate_path(self.path), "rb") as file:  # noqa: PTH123 - a str here
                return file.read()
        except OSError:
            return None

    def _send(self, content: bytes) -> None:
        range_match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        total_bytes = len(content)
        if range_match and self.behaviour.ranges:
            first_byte, last_byte = int(range_match[1]), int(range_match[2])
            content = content[first_byte : last_byte + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first_byte}-{last_byte}/{total_bytes}")
        else:
            self.send_response(200)
        is_page = self.path.endswith("/")
        self.send_header("Content-Type", "text/html" if is_page else "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.behaviour.cuts and self.behaviour.cuts in self.path:
            content = content[: len(content) // 2]
        self.behaviour.bodies.append((self.path, len(content)))
        self.wfile.write(content)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, Behaviour]]:
    """Yield the address of a server on a free port, and how it behaves, which may be changed."""
    behaviour = Behaviour()
    handler = partial(_Handler, directory=str(folder), behaviour=behaviour)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", behaviour
        finally:
            server.shutdown()
            thread.join()
