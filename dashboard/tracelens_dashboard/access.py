"""Who may look at a run: the names this server answers to, and the token that a network needs."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from typing import Final

LOOPBACK: Final = "127.0.0.1"
TRUSTED_HOSTS: Final = (LOOPBACK, "localhost")
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - served there with a token only
TOKEN_BYTES: Final = 32


@dataclass(frozen=True)
class Access:
    """Names in `Host` that are answered, and the token to be shown first; null = this machine only."""

    hosts: tuple[str, ...] = TRUSTED_HOSTS
    token: str | None = None

    @classmethod
    def of(cls, host: str) -> Access:
        """Return what listening on an address asks for: a fresh token, unless only we can reach it."""
        if host in TRUSTED_HOSTS:
            return cls()
        names = _names() if host == EVERYWHERE else (host,)
        return cls((*TRUSTED_HOSTS, *names), secrets.token_urlsafe(TOKEN_BYTES))

    def address(self, host: str, port: int) -> str:
        """Return the address to open; with a token in it, it is a key."""
        shown = self.hosts[len(TRUSTED_HOSTS)] if host == EVERYWHERE else host
        return f"http://{shown}:{port}/" + (f"?token={self.token}" if self.token else "")


def _names() -> tuple[str, ...]:
    """Return what other machines call this one, its address towards the network first."""
    name = socket.gethostname()
    try:
        _, aliases, addresses = socket.gethostbyname_ex(name)
    except OSError:
        aliases, addresses = [], []
    found = (*_outward(), name, socket.getfqdn(), *aliases, *addresses)
    return tuple(dict.fromkeys(known.lower() for known in found))


def _outward() -> tuple[str, ...]:
    """Return the address from which this machine would speak to others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of the block that stands in documents only (RFC 5737)
        except OSError:
            return ()
        return (str(probe.getsockname()[0]),)
