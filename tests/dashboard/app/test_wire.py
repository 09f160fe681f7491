"""What is sent is small, and asked for once."""

import gzip
import json
import re

import pytest
from flask.testing import FlaskClient
from support.web.callbacks import URL, request
from support.web.stores import slow_rank
from werkzeug.test import TestResponse

from tracelens_dashboard import chart_library
from tracelens_dashboard.app import wire
from tracelens_dashboard.app.server import create_app

GZIP = {"Accept-Encoding": "gzip, deflate, br"}
MOST_BYTES = 3_000_000
GRAPH = '{"chart":"waterfall","part":"graph"}.figure'


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    browser: FlaskClient = create_app(slow_rank()).server.test_client()
    return browser


def get(client: FlaskClient, path: str, headers: dict[str, str] | None = None) -> TestResponse:
    """Ask, and close what answers: assets are files."""
    return client.get(path, headers=headers, buffered=True)


def scripts(page: str) -> list[str]:
    """List the addresses that a page loads before it draws."""
    return re.findall(r'(?:src|href|data-address)="(/[^"]+)"', page)


def test_the_charts_library_says_that_all_of_it_is_called(client: FlaskClient) -> None:
    """The hint counts in a script's first line only; the address changes with the version."""
    answer = get(client, wire.LIBRARY_ADDRESS)
    first, _, rest = answer.text.partition("\n")
    assert first == "//# allFunctionsCalledOnLoad"
    assert rest == chart_library.source()
    assert answer.mimetype == "text/javascript"
    assert "immutable" in answer.headers["Cache-Control"]


def test_a_page_asks_for_it_before_dash_does(client: FlaskClient) -> None:
    """What runs first runs once: a second time, it would bring the library again."""
    found = [part.partition(">")[0] for part in get(client, "/").text.split("<script ")[1:]]
    early = [script for script in found if "/early/" in script]
    assert early == found[:2]
    assert f'data-address="{wire.LIBRARY_ADDRESS}"' in early[1]


def test_a_first_visit_takes_three_megabytes_at_most(client: FlaskClient) -> None:
    """All that the page itself names, and what Dash asks for before it draws."""
    page = get(client, "/", headers=GZIP)
    named = scripts(unpack_answer(page).decode())
    assert wire.LIBRARY_ADDRESS in named
    answers = [get(client, name, headers=GZIP) for name in named]
    answers += [
        get(client, name, headers=GZIP) for name in ("/_dash-layout", "/_dash-dependencies")
    ]
    assert {answer.status_code for answer in answers} == {200}
    assert sum(len(answer.data) for answer in [page, *answers]) < MOST_BYTES


@pytest.mark.parametrize(
    "path", [wire.LIBRARY_ADDRESS, "/assets/app.css", "/assets/clientside.js", "/_dash-layout"]
)
def test_what_is_compressed_is_what_is_sent_without(client: FlaskClient, path: str) -> None:
    """A second time, too; who knows no compression gets none."""
    plain = get(client, path, headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    for _ in range(2):
        packed = get(client, path, headers=GZIP)
        assert packed.headers["Content-Encoding"] == "gzip"
        assert "Accept-Encoding" in packed.headers["Vary"]
        assert int(packed.headers["Content-Length"]) == len(packed.data) < len(plain.data)
        assert unpack_answer(packed) == plain.data


def test_an_answer_is_compressed_anew() -> None:
    """Two windows of one callback have one address."""
    app = create_app(slow_rank())
    answers = []
    for scheme in ("light", "dark"):
        body = request(app, GRAPH, {"scheme.computedColorScheme": scheme})
        answer = app.server.test_client().post(URL, json=body, headers=GZIP)
        assert answer.headers["Content-Encoding"] == "gzip"
        answers.append(json.loads(unpack_answer(answer)))
    assert answers[0] != answers[1]


def test_what_a_browser_has_is_not_sent_again(client: FlaskClient) -> None:
    """An asset has an entity tag, with any compression."""
    tag = get(client, "/assets/app.css", headers=GZIP).headers["ETag"]
    again = get(client, "/assets/app.css", headers=GZIP | {"If-None-Match": tag})
    assert (again.status_code, again.data) == (304, b"")


def test_what_is_small_is_left_as_it_is(client: FlaskClient) -> None:
    """A packet holds it either way."""
    answer = get(client, "/assets/icon.svg", headers=GZIP)
    assert "Content-Encoding" not in answer.headers
    assert len(answer.data) < wire.LEAST_BYTES


def unpack_answer(answer: TestResponse) -> bytes:
    return gzip.decompress(answer.data)
