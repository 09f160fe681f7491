"""`tracelens serve` really listens, and lets in who has the address that it prints."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from support.launch.patience import PATIENCE_S
from support.web.browser import served

from tracelens.simulator.synthetic import Scenario, write

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from pathlib import Path

pytestmark = pytest.mark.end_to_end


def ask(host: str, port: int, path: str, **headers: str) -> tuple[int, HTTPMessage, str]:
    """Ask the server by a loopback address, which every machine has."""
    connection = HTTPConnection(host, port, timeout=PATIENCE_S)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


@pytest.mark.parametrize(
    ("given", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1")],  # noqa: S104 - that is what is tested
)
def test_the_printed_address_is_the_key(tmp_path: Path, given: str, asked: str) -> None:
    """Without its token 401, with it a cookie, with the cookie every page; a foreign name is 400."""
    write(Scenario(ranks=2, steps=5), tmp_path)
    with served(tmp_path, "--host", given) as url:
        address = urlsplit(url)
        assert address.port
        there = asked, address.port
        assert ask(*there, "/")[0] == 401
        status, headers, _ = ask(*there, f"/?{address.query}")
        assert status == 200
        cookie = headers["Set-Cookie"].partition(";")[0]
        status, _, text = ask(*there, "/", Cookie=cookie)
        assert status == 200
        assert "TraceLens" in text
        assert ask(*there, "/", Cookie=cookie, Host="evil.example")[0] == 400
        assert ask(*there, "/", Cookie=cookie, Host=address.netloc)[0] == 200
