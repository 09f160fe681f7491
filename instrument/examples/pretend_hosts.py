"""Run a training on pretend hosts whose network is slow or whose clocks differ; as root.

    tracelens record -- python pretend_hosts.py --hosts 4 --rate 1gbit --slow-link 1:2=20mbit -- \
        python -m mpi4py mpi_allreduce.py --algorithm ring
    tracelens record -- python pretend_hosts.py --hosts 2 --rate 100mbit --shift 0,0.25 -- \
        python ddp_cnn.py

One rank a host. Commands with mpi4py are started by mpiexec, others with torchrun's variables.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pretend_network import SWITCH, PretendHosts, SlowLink, why_not

PORT: Final = 29500
# Else MPI goes past the network, through memory that the "hosts" share.
MPI_OVER_TCP: Final = {
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
}


def main() -> int:
    """Run it; the exit code is the worst of the ranks'."""
    arguments = _parser().parse_args()
    reason = why_not()
    if reason:
        raise SystemExit(reason)
    command = arguments.command[1:] if arguments.command[0] == "--" else arguments.command
    hosts = PretendHosts(
        arguments.hosts, arguments.rate, arguments.slow_link, tuple(arguments.shift)
    )
    with hosts:
        return _by_mpiexec(hosts, command) if "mpi4py" in command else _by_variables(hosts, command)


def _by_mpiexec(hosts: PretendHosts, command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        shell = hosts.write_remote_shell(Path(folder))
        launch = [_mpiexec(), "-launcher", "rsh", "-launcher-exec", str(shell), "-ppn", "1"]
        launch += ["-iface", "br0", "-localhost", SWITCH, "-hosts", ",".join(hosts.addresses)]
        inside = ["ip", "netns", "exec", hosts.switch, *launch, "-n", str(len(hosts.names))]
        return subprocess.run(
            [*inside, *command], env=os.environ | MPI_OVER_TCP, check=False
        ).returncode


def _mpiexec() -> str:
    """The one that belongs to this Python's MPI, if it has one."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else "mpiexec"


def _by_variables(hosts: PretendHosts, command: list[str]) -> int:
    ranks = [
        subprocess.Popen(
            [*hosts.enter(rank), *command],
            env=os.environ
            | {
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(len(hosts.names)),
                "MASTER_ADDR": hosts.addresses[0],
                "MASTER_PORT": str(PORT),
                "GLOO_SOCKET_IFNAME": "eth0",
            },
        )
        for rank in range(len(hosts.names))
    ]
    return max(abs(rank.wait()) for rank in ranks)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="", help="bandwidth of a host, as 100mbit; default: all")
    parser.add_argument(
        "--slow-link", type=_link, metavar="A:B=RATE", help="less between these two hosts"
    )
    parser.add_argument(
        "--shift", type=_seconds, default=[], metavar="S,S,...", help="clocks ahead by seconds"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def _link(text: str) -> SlowLink:
    pair, _, rate = text.partition("=")
    one, _, other = pair.partition(":")
    return SlowLink(int(one), int(other), rate)


def _seconds(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
