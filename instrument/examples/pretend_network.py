"""Pretend hosts on one machine: network namespaces with limited bandwidth and shifted clocks.

Needs root, and the programs ip and tc (Debian: iproute2). Bandwidth is limited by the kernel's own token
buckets, so transfers really take their time.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

SUBNET: Final = "10.77.0"
SWITCH: Final = f"{SUBNET}.254"
SHIFT_CLOCK: Final = Path(__file__).with_name("shift_clock.py")
NAME_AND_RUN: Final = 'hostname "$0"; exec "$@"'


@dataclass(frozen=True)
class SlowLink:
    """Two hosts, by number, that have less bandwidth between them than to the others."""

    one: int
    other: int
    rate: str


def why_not() -> str | None:
    """Tell why there can be no pretend hosts here; None if there can."""
    if os.geteuid() != 0:
        return "pretend hosts need root, to make network namespaces"
    missing = [program for program in ("ip", "tc", "unshare") if shutil.which(program) is None]
    if missing:
        return f"pretend hosts need {' and '.join(missing)} (Debian: iproute2, util-linux)"
    try:
        with PretendHosts(2, "1gbit", SlowLink(0, 1, "1mbit"), (0.0, 1.0)) as hosts:
            _run(*hosts.enter(1), "true")
    except SystemExit as refused:
        return f"pretend hosts cannot be made here: {refused}"
    return None


class PretendHosts:
    """A bridge with `count` hosts, for as long as the context lasts.

    Args:
        count: How many hosts.
        rate: What each can send and receive, as tc writes it (``100mbit``); empty: no limit.
        slow: A pair with less than that.
        shifts: Seconds that each host's monotonic clock is ahead; shorter: the rest is not shifted.
    """

    def __init__(
        self,
        count: int,
        rate: str = "",
        slow: SlowLink | None = None,
        shifts: tuple[float, ...] = (),
    ) -> None:
        tag = f"tl{os.getpid()}"
        self.switch = f"{tag}sw"
        self.names = [f"{tag}h{number}" for number in range(count)]
        self.addresses = [f"{SUBNET}.{number + 1}" for number in range(count)]
        self._rate = rate
        self._slow = slow
        self._shifts = [*shifts, *[0.0] * count][:count]

    def __enter__(self) -> Self:
        """Make them.

        Raises:
            SystemExit: ip or tc refused something; it says what. Nothing is left behind.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove)
            _run("ip", "netns", "add", self.switch)
            _ip(self.switch, "link add br0 type bridge")
            _ip(self.switch, f"addr add {SWITCH}/24 dev br0")
            _ip(self.switch, "link set br0 up")
            _ip(self.switch, "link set lo up")
            for number in range(len(self.names)):
                self._plug_in(number)
            if self._slow:
                self._slow_down(self._slow.one, self._slow.other, self._slow.rate)
                self._slow_down(self._slow.other, self._slow.one, self._slow.rate)
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove them."""
        self._remove()

    def enter(self, number: int) -> list[str]:
        """Return what to put before a command for it to run on this host."""
        shift = self._shifts[number]
        shifted = [sys.executable, str(SHIFT_CLOCK), f"{shift}"] if shift else []
        named = ["unshare", "--uts", "sh", "-c", NAME_AND_RUN, f"host{number}"]
        return ["ip", "netns", "exec", self.names[number], *shifted, *named]

    def write_remote_shell(self, folder: Path) -> Path:
        """Write a stand-in for ssh, which mpiexec calls with the address of a host."""
        for number, address in enumerate(self.addresses):
            (folder / address).write_text(shlex.join(self.enter(number)))
        shell = folder / "remote-shell"
        shell.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
            f"host=$1; shift\neval \"exec $(cat {shlex.quote(str(folder))}/$host) sh -c '$*'\"\n"
        )
        shell.chmod(0o755)
        return shell

    def _plug_in(self, number: int) -> None:
        host, port = self.names[number], f"p{number}"
        _run("ip", "netns", "add", host)
        _ip(host, "link set lo up")
        _ip(host, f"link add eth0 type veth peer name {port} netns {self.switch}")
        _ip(host, f"addr add {self.addresses[number]}/24 dev eth0")
        _ip(host, "link set eth0 up")
        _ip(self.switch, f"link set {port} up master br0")
        for namespace, device in ((host, "eth0"), (self.switch, port)):
            rate = self._rate or "100gbit"
            _tc(namespace, f"qdisc add dev {device} root handle 1: htb default 1")
            _tc(namespace, f"class add dev {device} parent 1: classid 1:1 htb rate {rate}")

    def _slow_down(self, sender: int, receiver: int, rate: str) -> None:
        """What goes to this receiver has a class of its own."""
        host = self.names[sender]
        _tc(host, f"class add dev eth0 parent 1: classid 1:2 htb rate {rate}")
        match = f"u32 match ip dst {self.addresses[receiver]}/32 flowid 1:2"
        _tc(host, f"filter add dev eth0 parent 1: protocol ip {match}")

    def _remove(self) -> None:
        for name in (*self.names, self.switch):
            _run("ip", "netns", "del", name, check=False)


def _ip(namespace: str, command: str) -> None:
    _run("ip", "-n", namespace, *command.split())


def _tc(namespace: str, command: str) -> None:
    _run("tc", "-n", namespace, *command.split())


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"'{shlex.join(command)}' failed: {done.stderr.strip()}")
    return done
