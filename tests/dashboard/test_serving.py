"""Serving is for this machine only, says where it is, and ends cleanly."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from support.stores import slow_rank

from tracelens.errors import InvalidArgument
from tracelens.simulator.synthetic import Scenario, write
from tracelens_dashboard.server import serve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "192.168.0.7", "example.org", ""])  # noqa: S104 - must be refused
def test_the_network_is_refused_with_a_way_out(host: str) -> None:
    """Another address than loopback is refused in one sentence that offers a tunnel."""
    with pytest.raises(InvalidArgument, match="ssh -L"):
        serve(slow_rank(), host=host)


def test_a_taken_port_is_one_sentence() -> None:
    """A port in use is not a traceback but advice."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidArgument, match="--port"):
            serve(slow_rank(), port=taken.getsockname()[1])


@pytest.mark.end_to_end
def test_ctrl_c_ends_with_exit_code_0(tmp_path: Path) -> None:
    """`serve` prints its address, answers there, and Ctrl-C is a normal end."""
    write(Scenario(ranks=2, steps=5), tmp_path)
    program = "import sys; from tracelens_dashboard.server import serve; serve(sys.argv[1], port=0)"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        with urlopen(url, timeout=30) as answer:  # noqa: S310 - our own address
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()
