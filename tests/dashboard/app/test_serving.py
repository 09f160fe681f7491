"""Serving is for this machine only, says where it is, and ends cleanly."""

import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest
from support.launch.ending import ENDING_S
from support.launch.patience import PATIENCE_S
from support.web.stores import slow_rank

from tracelens.errors import InvalidArgument
from tracelens.simulator.synthetic import Scenario, write
from tracelens_dashboard.app.server import serve
from tracelens_dashboard.runs.catalog import Runs


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7", "host.invalid", ""])
def test_an_address_that_is_not_ours_is_one_sentence(host: str) -> None:
    """What cannot be listened on is refused with what can be said instead."""
    with pytest.raises(InvalidArgument, match="leave --host out"):
        serve(slow_rank(), host=host, port=0)


def test_a_taken_port_is_one_sentence() -> None:
    """A port in use is not a traceback but advice."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(InvalidArgument, match="--port"):
            serve(slow_rank(), port=listener.getsockname()[1])


SERVE = """
import signal, sys
from tracelens_dashboard.app.server import serve
signal.signal(signal.SIGINT, signal.{interrupted})
serve(sys.argv[1], port=0)
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("name", "interrupted"),
    [
        pytest.param("SIGINT", "default_int_handler", id="Ctrl-C", marks=pytest.mark.slow),
        pytest.param("SIGTERM", "default_int_handler", id="SIGTERM", marks=pytest.mark.slow),
        pytest.param("SIGTERM", "SIG_IGN", id="SIGTERM in the background"),
    ],
)
def test_a_signal_is_a_normal_end(tmp_path: Path, name: str, interrupted: str) -> None:
    """`serve` says where it is, answers there, and ends with 0, also where SIGINT is ignored."""
    write(Scenario(ranks=2, steps=5), tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE.format(interrupted=interrupted), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        with urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - our own address
            assert answer.status == 200
        process.send_signal(signal.Signals[name])
        assert process.wait(timeout=ENDING_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.end_to_end
@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_before_the_first_request_is_a_normal_end(tmp_path: Path, name: str) -> None:
    """As soon as the address is out a signal ends it well, also before the server's loop begins."""
    write(Scenario(ranks=2, steps=5), tmp_path)
    program = SERVE.format(interrupted="default_int_handler").replace(
        "port=0", f"port=0, ready=lambda _: signal.raise_signal(signal.{name})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_that_is_still_refined_is_awaited_at_the_end() -> None:
    """The interpreter could abort if it ended before that thread does."""
    store = slow_rank()
    store.refinement_thread = Thread(target=time.sleep, args=(0.2,), daemon=True)
    store.refinement_thread.start()
    Runs.from_store(store).close()
    assert not store.refinement_thread.is_alive()


def test_from_another_thread_it_serves_as_well() -> None:
    """Only the main thread may set what a signal does; others serve without."""
    stop = _Stop()

    def stop_serving(_: str) -> None:
        raise stop

    with ThreadPoolExecutor() as pool:
        # Dash keeps what it needs in the context of whoever imports it.
        context = copy_context()
        serving = pool.submit(context.run, serve, slow_rank(), port=0, ready=stop_serving)
        assert serving.exception(timeout=PATIENCE_S) is stop


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_may_stand_in_brackets(host: str) -> None:
    """As it does in links; there, `Host` and `Origin` have brackets, too."""

    def look(url: str) -> None:
        assert url.startswith("http://[::1]:")
        raise _Stop

    with pytest.raises(_Stop):
        serve(slow_rank(), host=host, port=0, ready=look)


class _Stop(Exception):
    """Ends what serves, so that the test does."""
