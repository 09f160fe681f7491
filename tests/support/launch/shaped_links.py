"""Runs a command in a network of its own, where some loopback addresses have links of limited bandwidth.

    python shaped_links.py RATE COUNT COMMAND...    as root; needs ip and tc

The addresses are 127.0.0.2 and on; each has so much in either direction, as a host with a network card.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSIDE = "SHAPED_LINKS"


def commands(rate: str, count: int) -> Iterator[str]:
    """Yield what makes the links: a class of bandwidth for each address and direction."""
    yield "ip link set lo up mtu 1500"
    yield "tc qdisc add dev lo root handle 1: htb default 999"
    for class_index in range(2 * count):
        side, address = ("dst", "src")[class_index % 2], f"127.0.0.{class_index // 2 + 2}/32"
        classid = f"classid 1:{class_index + 1}"
        yield f"tc class add dev lo parent 1: {classid} htb rate {rate} burst 32k cburst 32k"
        match = f"protocol ip prio 1 u32 match ip {side} {address} flowid 1:{class_index + 1}"
        yield f"tc filter add dev lo parent 1: {match}"


def main() -> None:
    """Make the links in a new network, and become the command."""
    rate, count, *command = sys.argv[1:]
    if _INSIDE not in os.environ:
        os.environ[_INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])  # noqa: S606
    for line in commands(rate, int(count)):
        subprocess.run(line.split(), check=True)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
