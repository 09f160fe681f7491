"""A real S3 server (moto's) in a process of its own, until that is asked to end.

Run as a module it serves: it writes its address, and ends when its standard input does.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["serving"]


@contextmanager
def serving() -> Iterator[str]:
    """Yield the address of a server on a free port."""
    command = [sys.executable, __file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def _serve() -> None:
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - seconds, in this process only

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    _serve()
