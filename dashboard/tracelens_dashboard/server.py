"""Serves one run on this machine, until Ctrl-C."""

from __future__ import annotations

import socket
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waitress import create_server

from tracelens.errors import InvalidArgument
from tracelens.load import open as open_trace
from tracelens_dashboard.app import create_app
from tracelens_dashboard.guards import TRUSTED_HOSTS
from tracelens_dashboard.store import Store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

LOOPBACK: Final = "127.0.0.1"
THREADS: Final = 8


def serve(
    source: Store | str | os.PathLike[str],
    host: str = LOOPBACK,
    port: int = 8050,
    *,
    open_browser: bool = False,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a run, opened or to be opened; returns on Ctrl-C.

    `port` 0 picks a free one; `ready` is called with the address once requests are accepted.

    Raises:
        InvalidArgument: `host` is not this machine's loopback, or the port is taken.
        UnusableInput: the trace cannot be read.
    """
    _refuse_network(host)
    store = (
        source
        if isinstance(source, Store)
        else Store.open(Path(source), lambda: open_trace(source))
    )
    store.refine()
    server = _listen(create_app(store).server, host, port)
    url = f"http://{host}:{server.effective_port}/"
    sys.stdout.write(f"TraceLens shows this run at {url} (Ctrl-C ends)\n")
    sys.stdout.flush()
    if ready:
        ready(url)
    if open_browser:
        webbrowser.open(url)
    try:
        server.run()  # returns on Ctrl-C
    finally:
        server.close()


def _listen(application: Any, host: str, port: int) -> Any:
    try:
        listening = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise InvalidArgument(
            f"Port {port} cannot be used ({error}): choose another one with --port, 0 picks one."
        ) from error
    return create_server(application, sockets=[listening], threads=THREADS, ident=None)


def _refuse_network(host: str) -> None:
    """A run names hosts, functions and tensors: nobody else on the network shall read them."""
    if host not in TRUSTED_HOSTS:
        raise InvalidArgument(
            f"'{host}' would show this run to the network; TraceLens listens on {LOOPBACK} only. "
            f"From another machine use a tunnel: ssh -L 8050:{LOOPBACK}:8050 {socket.gethostname()}"
        )
