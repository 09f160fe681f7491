"""`tracelens serve --host 0.0.0.0` really listens, and lets in who has the address that it prints."""

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


def ask(port: int, path: str, **headers: str) -> tuple[int, HTTPMessage, str]:
    """Ask the server by its loopback address, which is the one that every machine has."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def test_the_printed_address_is_the_key(tmp_path: Path) -> None:
    """Without its token 401, with it a cookie, with the cookie every page; a foreign name is 400."""
    write(Scenario(ranks=2, steps=5), tmp_path)
    with served(tmp_path, "--host", "0.0.0.0") as url:  # noqa: S104 - that is what is tested
        address = urlsplit(url)
        assert address.port
        assert ask(address.port, "/")[0] == 401
        status, headers, _ = ask(address.port, f"/?{address.query}")
        assert status == 200
        cookie = headers["Set-Cookie"].partition(";")[0]
        status, _, text = ask(address.port, "/", Cookie=cookie)
        assert status == 200
        assert "TraceLens" in text
        assert ask(address.port, "/", Cookie=cookie, Host="evil.example")[0] == 400
        if address.hostname and not address.hostname.startswith("127."):
            assert ask(address.port, "/", Cookie=cookie, Host=address.netloc)[0] == 200
