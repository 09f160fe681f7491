"""Serving is for this machine only, says where it is, and ends cleanly."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from support.patience import PATIENCE_S
from support.stores import slow_rank

from tracelens.errors import InvalidArgument
from tracelens.simulator.synthetic import Scenario, write
from tracelens_dashboard.server import serve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("host", ["192.0.2.7", "::", "host.invalid", ""])
def test_an_address_that_is_not_ours_is_one_sentence(host: str) -> None:
    """What cannot be listened on is refused with what can be said instead."""
    with pytest.raises(InvalidArgument, match="leave --host out"):
        serve(slow_rank(), host=host, port=0)


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
        with urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - our own address
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
