"""Listens for requests: at which address, on how many connections, and for how long one may arrive.

The server itself is waitress. What it lacks: a client that keeps connections open without a whole
request on them would keep out all others once there are as many as it accepts. Of too many connections
one of the address that has most gives way.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections import Counter
from ipaddress import ip_address
from typing import Any, Final

from waitress import create_server
from waitress.channel import HTTPChannel

from tracelens.errors import InvalidArgument

THREAD_COUNT: Final = 8
MAX_CONNECTIONS: Final = 512
ARRIVAL_S: Final = 20  # for a request, once its first byte is here; and for the next one
BETWEEN_CHECKS_S: Final = 2
PORT_TAKEN: Final = {errno.EADDRINUSE, errno.EACCES}


def listen(application: Any, host: str, port: int) -> Any:
    """Return a server that listens, and answers once it is run.

    Raises:
        InvalidArgument: `host` is no address of this machine, or the port is taken.
    """
    if not host:  # the system would take it for all addresses
        raise InvalidArgument(_no_address(host))
    try:
        is_dual_stack = host == "::" and socket.has_dualstack_ipv6()
        listening_socket = socket.create_server(
            (host, port), family=_family(host), dualstack_ipv6=is_dual_stack
        )
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno not in PORT_TAKEN:
            raise InvalidArgument(_no_address(host)) from error
        raise InvalidArgument(
            f"Port {port} cannot be used ({error}): choose another one with --port, 0 picks one."
        ) from error
    # A line for each request that waits for another one would hide what failed.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = create_server(
        application,
        sockets=[listening_socket],
        threads=THREAD_COUNT,
        ident=None,
        connection_limit=2 * MAX_CONNECTIONS,  # never reached: connections give way before
        channel_timeout=ARRIVAL_S,
        cleanup_interval=BETWEEN_CHECKS_S,
        asyncore_use_poll=True,  # select() ends at descriptor 1,024
    )
    server.channel_class = Connection
    return server


class Connection(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection to a browser; of too many, the address with most closes what it used least lately."""

    last_activity: float

    def __init__(self, server: Any, *arguments: Any, **options: Any) -> None:
        """Close an idle connection if there are too many: of the address with most, the oldest."""
        super().__init__(server, *arguments, **options)
        channels = [channel for channel in server.active_channels.values() if channel is not self]
        if len(channels) >= MAX_CONNECTIONS:
            count_by_address = Counter(channel.addr[0] for channel in channels)
            idle = [channel for channel in channels if not (channel.requests or channel.will_close)]
            if idle:
                oldest = min(idle, key=lambda c: (-count_by_address[c.addr[0]], c.last_activity))
                oldest.will_close = True

    def handle_read(self) -> None:
        """Read; further bytes of a request are no activity, so that one cannot arrive for ever."""
        begun_s = self.last_activity if self.request is not None else None
        super().handle_read()
        if begun_s is not None and self.request is not None:
            self.last_activity = begun_s


def _family(host: str) -> socket.AddressFamily:
    try:
        return socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
    except ValueError:  # a name
        return socket.AF_INET


def _no_address(host: str) -> str:
    return (
        f"'{host}' is no address of this machine: leave --host out to show it on this machine "
        "only, or give 0.0.0.0 to show it to the network."
    )
