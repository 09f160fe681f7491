"""Serves runs until Ctrl-C or SIGTERM: to this machine, or to a network by token."""

from __future__ import annotations

import errno
import signal
import socket
import sys
import threading
import webbrowser
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waitress import create_server

from tracelens.errors import InvalidArgument
from tracelens.load import open as open_trace
from tracelens_dashboard.access import LOOPBACK, Access
from tracelens_dashboard.app import create_app
from tracelens_dashboard.runs import Runs
from tracelens_dashboard.store import Store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

THREADS: Final = 8
PORT_TAKEN: Final = {errno.EADDRINUSE, errno.EACCES}
NETWORK: Final = (
    "Whoever has this address can see the run, and nothing on the way is encrypted; "
    "safer is a tunnel: ssh -L {port}:127.0.0.1:{port} {name}\n"
)


def serve(
    source: Runs | Store | str | os.PathLike[str],
    host: str = LOOPBACK,
    port: int = 8050,
    *,
    open_browser: bool = False,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve several runs, or one, opened or to be opened; returns on Ctrl-C, or on SIGTERM.

    Another `host` than this machine's loopback makes a token, which is part of the address.
    `port` 0 picks a free one; `ready` is called with the address once requests are accepted.

    Raises:
        InvalidArgument: `host` is no IPv4 address of this machine, or the port is taken.
        UnusableInput: the trace cannot be read.
    """
    access = Access.of(host)
    runs = source if isinstance(source, Runs) else Runs.of(_opened(source))
    server = _listen(create_app(runs, access).server, host, port)
    url = access.address(host, server.effective_port)
    # The server's loop returns when it is interrupted; it may be before it or after it, too.
    with closing(server), suppress(KeyboardInterrupt), _interrupted_by_sigterm():
        _tell(url, access, server.effective_port)
        if ready:
            ready(url)
        if open_browser:
            webbrowser.open(url)
        server.run()


def _tell(url: str, access: Access, port: int) -> None:
    sys.stdout.write(f"TraceLens is at {url} (Ctrl-C ends)\n")
    if access.token:
        sys.stdout.write(NETWORK.format(port=port, name=socket.gethostname()))
    sys.stdout.flush()


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does: what runs in the background ignores SIGINT.

    Only the main thread may say what a signal does; whoever serves from another one ends it otherwise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _opened(source: Store | str | os.PathLike[str]) -> Store:
    if not isinstance(source, Store):
        return _opened(Store.open(Path(source), lambda: open_trace(source)))
    source.refine()
    return source


def _listen(application: Any, host: str, port: int) -> Any:
    if not host:  # the system would take it for all addresses
        raise InvalidArgument(_no_address(host))
    try:
        listening = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno not in PORT_TAKEN:
            raise InvalidArgument(_no_address(host)) from error
        raise InvalidArgument(
            f"Port {port} cannot be used ({error}): choose another one with --port, 0 picks one."
        ) from error
    return create_server(application, sockets=[listening], threads=THREADS, ident=None)


def _no_address(host: str) -> str:
    return (
        f"'{host}' is no IPv4 address of this machine: leave --host out to show it on this machine "
        "only, or give 0.0.0.0 to show it to the network, by token."
    )
