"""Whoever opens the dashboard shows the token first, also on this machine, unless none is wanted."""

import re
from urllib.parse import urlencode, urlsplit

import pytest
from dash import Dash
from flask.testing import FlaskClient
from support.web.callbacks import URL
from support.web.stores import slow_rank

from tracelens.errors import InvalidArgument
from tracelens_dashboard.app.guards import LOOPBACK, WILDCARD_HOSTS, Access
from tracelens_dashboard.app.server import create_app

TOKEN = 3 * "for-tests-only-"
HERE = {"Host": "box:8050"}
PATHS = ("/", "/timeline?t0=5&t1=9", "/_dash-layout", "/_dash-dependencies", "/assets/app.css")


@pytest.fixture(scope="module")
def app() -> Dash:
    """Show a run to the network as ``box``."""
    return create_app(slow_rank(), Access(("127.0.0.1", "box"), TOKEN))


@pytest.fixture
def visitor(app: Dash) -> FlaskClient:
    """Come without any cookie."""
    client: FlaskClient = app.server.test_client()
    return client


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "\N{SNOWMAN}"])
def test_without_the_token_there_is_one_sentence(
    visitor: FlaskClient, path: str, token: str
) -> None:
    """No page, no data and no asset; also not for a cookie that is wrong."""
    visitor.set_cookie("tracelens-8050", token, domain="box")
    given = f"{'&' if '?' in path else '?'}{urlencode({'token': token})}" if token else ""
    answer = visitor.get(path + given, headers=HERE)
    assert answer.status_code == 401
    assert answer.text.count(".") == 1
    assert "Set-Cookie" not in answer.headers
    assert visitor.post(URL, json={}, headers=HERE).status_code == 401


def test_the_first_visit_leaves_a_strict_cookie(visitor: FlaskClient) -> None:
    """The token is not kept where scripts, other sites or the address bar could show it."""
    answer = visitor.get(f"/timeline?token={TOKEN}&t0=5&t1=9", headers=HERE)
    assert answer.status_code == 200
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Domain" not in cookie
    assert 'url=/timeline?t0=5&amp;t1=9"' in answer.text
    assert TOKEN not in answer.text
    for path in PATHS:
        with visitor.get(path, headers=HERE) as page:
            assert page.status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/%22><script>"])
def test_the_token_opens_no_other_page(visitor: FlaskClient, path: str) -> None:
    """After the first visit the server redirects only to paths of its own."""
    text = visitor.get(f"{path}?token={TOKEN}", headers=HERE).text
    target = re.search(r'url=([^"]*)"', text)
    assert target
    assert re.match(r"/(?![/\\])", target[1])
    assert "<script" not in text


def test_a_wrong_host_is_refused_before_the_token_is_looked_at(visitor: FlaskClient) -> None:
    """A page that reaches us by its own DNS learns nothing, not even with the token."""
    for query in ("", f"?token={TOKEN}"):
        answer = visitor.get(f"/{query}", headers={"Host": "evil.example"})
        assert answer.status_code == 400
        assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("host", [*WILDCARD_HOSTS, "10.1.2.3", "box.example"])
def test_every_network_address_has_a_token_of_its_own(host: str) -> None:
    """The address that is printed holds it; two runs never share one."""
    access, other_access = Access.from_host(host), Access.from_host(host)
    assert access.token
    assert len(access.token) >= 40
    assert access.token != other_access.token
    address = access.make_address(host, 8050)
    assert address.endswith(f":8050/?token={access.token}")
    assert urlsplit(address).hostname in set(access.answered_hosts) - {*WILDCARD_HOSTS}


@pytest.mark.parametrize(
    ("host", "shown"), [(LOOPBACK, LOOPBACK), ("localhost", "localhost"), ("::1", "[::1]")]
)
def test_this_machine_has_other_users(host: str, shown: str) -> None:
    """So there is a token, too, unless none is wanted; names of other machines are not answered."""
    access = Access.from_host(host)
    assert access.token
    assert access.answered_hosts == Access().answered_hosts
    assert access.make_address(host, 1) == f"http://{shown}:1/?token={access.token}"
    assert Access.from_host(host, token=False).make_address(host, 1) == f"http://{shown}:1/"


@pytest.mark.parametrize("host", [*WILDCARD_HOSTS, "10.1.2.3"])
def test_a_network_is_not_shown_a_run_without_a_token(host: str) -> None:
    """Who wants no token is asked to stay on this machine."""
    with pytest.raises(InvalidArgument, match="leave --no-token out"):
        Access.from_host(host, token=False)
