"""Connections without a whole request on them keep nobody out."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
from support.launch.patience import PATIENCE_S

from tracelens_dashboard.app import listening

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
LIMIT = 16


def answer_ok(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


@contextmanager
def serve_page() -> Iterator[int]:
    server = listening.listen(answer_ok, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.effective_port
    server.close()


def open_connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def status_of(port: int) -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_those_that_say_half_of_it_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more connections than are kept, each with half a request: others are answered."""
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", LIMIT)
    with serve_page() as port, ExitStack() as open_:
        connections = []
        for _ in range(4 * LIMIT):
            connections.append(open_.enter_context(open_connection(port)))
            connections[-1].sendall(HALF)
        assert [status_of(port) for _ in range(8)] == [200] * 8
        assert is_closed(connections[0])


def test_who_has_most_connections_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another address keeps the one that it has, however long nothing was asked on it."""
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", LIMIT)
    with serve_page() as port, ExitStack() as open_:
        client = HTTPConnection(
            "127.0.0.1", port, timeout=PATIENCE_S, source_address=("127.0.0.2", 0)
        )
        open_.enter_context(closing(client))
        client.connect()
        socket_before = client.sock
        for _ in range(4 * LIMIT):
            open_.enter_context(open_connection(port)).sendall(HALF)
        client.request("GET", "/")
        assert client.getresponse().status == 200
        assert client.sock is socket_before


def test_a_request_has_so_long_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it drips: each byte is no new beginning."""
    monkeypatch.setattr(listening, "ARRIVAL_S", 1)
    monkeypatch.setattr(listening, "BETWEEN_CHECKS_S", 0)
    with serve_page() as port, open_connection(port) as slow:
        deadline_s = time.monotonic() + PATIENCE_S
        slow.sendall(HALF + b"X: ")
        slow.settimeout(0.2)
        while time.monotonic() < deadline_s:
            try:
                slow.sendall(b"x")
                if is_closed(slow):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection stayed open")
        assert status_of(port) == 200


def test_a_connection_is_used_again() -> None:
    """What asks, waits and asks again on one connection is answered each time."""
    with (
        serve_page() as port,
        closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client,
    ):
        for _ in range(3):
            client.request("GET", "/")
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (200, b"ok")
