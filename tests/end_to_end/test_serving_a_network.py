"""`tracelens serve` accepts connections from other hosts that have its printed address."""

import os
import subprocess
import sys
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from benchmarks.clients import visited
from support.launch.patience import PATIENCE_S
from support.web.browser import served

from tracelens.simulator.synthetic import Scenario, write

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


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
        host_and_port = asked, address.port
        assert ask(*host_and_port, "/")[0] == 401
        status, headers, _ = ask(*host_and_port, f"/?{address.query}")
        assert status == 200
        cookie = headers["Set-Cookie"].partition(";")[0]
        status, _, text = ask(*host_and_port, "/", Cookie=cookie)
        assert status == 200
        assert "TraceLens" in text
        assert ask(*host_and_port, "/", Cookie=cookie, Host="evil.example")[0] == 400
        assert ask(*host_and_port, "/", Cookie=cookie, Host=address.netloc)[0] == 200


# The first request imports what may not be seen by others.
AS_ANOTHER = """
import os, sys
from http.client import HTTPConnection
for user in (0, 65534):
    os.setuid(user)
    connection = HTTPConnection(sys.argv[1])
    for path in ("/", "/_dash-layout", "/_dash-dependencies"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        print(answer.status)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_machine_is_not_let_in(tmp_path: Path) -> None:
    """A login node has many users, and the loopback address is everybody's."""
    write(Scenario(ranks=2, steps=5), tmp_path)
    with served(tmp_path, "--host", "127.0.0.1") as url:
        asked = [sys.executable, "-c", AS_ANOTHER, urlsplit(url).netloc]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["401"] * 6  # without the token root is not let in, either


def test_many_clients_are_all_answered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """For a short while, and nothing is printed; `make bench NAME=clients` does so for a minute."""
    write(Scenario(ranks=2, steps=5), tmp_path)
    found = visited(tmp_path, clients=20, seconds=2)
    assert set(found.answers) == {200}
    assert found.answers[200] >= 100
    assert capfd.readouterr().err == ""
