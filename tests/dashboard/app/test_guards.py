"""A local dashboard stays local: foreign hosts, foreign pages and foreign scripts are refused."""

import pytest
from dash import Dash
from support.web.callbacks import URL, call
from support.web.stores import slow_rank

from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.theme import GRAPH_CONFIG

GRAPH = '{"chart":"waterfall","part":"graph"}.figure'
LIGHT = {"scheme.computedColorScheme": "light"}


@pytest.fixture
def app() -> Dash:
    return create_app(slow_rank())


@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies", "/timeline"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "169.254.0.1"])
def test_a_foreign_host_is_refused(app: Dash, path: str, host: str) -> None:
    """A page that reaches us under another name (DNS rebinding) gets 400 and nothing else."""
    answer = app.server.test_client().get(path, headers={"Host": host})
    assert answer.status_code == 400
    assert "TraceLens" not in answer.text


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8050", "localhost:1234", "localhost", "[::1]", "[::1]:8050"]
)
def test_this_machine_is_served(app: Dash, host: str) -> None:
    """Loopback names are served, with any port."""
    assert app.server.test_client().get("/", headers={"Host": host}).status_code == 200


def test_another_page_cannot_post(app: Dash) -> None:
    """A POST that another origin sends is refused; our own, and tools without one, are served."""
    host = {"Host": "127.0.0.1:8050"}
    assert call(app, GRAPH, LIGHT, **host, Origin="https://evil.example").status_code == 403
    assert call(app, GRAPH, LIGHT, **host, Origin="http://127.0.0.1:9999").status_code == 403
    assert call(app, GRAPH, LIGHT, **host, Origin="null").status_code == 403
    assert call(app, GRAPH, LIGHT, **host, Origin="http://[::1").status_code == 403
    assert call(app, GRAPH, LIGHT, **host, Origin="http://127.0.0.1:8050").status_code == 200
    assert call(app, GRAPH, LIGHT, **host).status_code == 200


def test_views_and_requests_have_a_size(app: Dash) -> None:
    """Addresses and bodies beyond what any page sends are refused before they are read."""
    browser = app.server.test_client()
    assert browser.get("/timeline?pin=" + "1," * 4000).status_code == 414
    assert browser.get("/?" + "&".join(f"a{i}=1" for i in range(100))).status_code == 414
    body = b'{"x": "' + b"x" * (2 << 20) + b'"}'
    answer = browser.post(URL, data=body, content_type="application/json")
    assert answer.status_code == 413
    assert "Traceback" not in answer.text


def test_no_debugger_is_served(app: Dash) -> None:
    """Neither Flask's debugger nor Dash's developer tools are on: they would run a stranger's code."""
    assert app.server.debug is False
    assert app.server.test_client().get("/?__debugger__=yes&cmd=resource&f=debugger.js").status_code
    assert b'"ui":false' in app.server.test_client().get("/").data


def test_pages_load_nothing_from_elsewhere(app: Dash) -> None:
    """Every address in the page is ours, and the policy forbids all others and framing."""
    answer = app.server.test_client().get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'self' 'sha256-" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert 'src="http' not in answer.text
    assert 'href="http' not in answer.text


def test_no_graph_offers_to_upload() -> None:
    """Plotly's button that sends the figure to its cloud is off."""
    assert GRAPH_CONFIG["showSendToCloud"] is False


@pytest.mark.parametrize(
    "path",
    ["/assets/../app.py", "/assets/%2e%2e/app.py", "/_dash-component-suites/dash/../../x", "/nope"],
)
def test_no_traceback_reaches_the_page(app: Dash, path: str) -> None:
    """Paths that lead out of the assets, or nowhere, show neither files nor tracebacks."""
    text = app.server.test_client().get(path).text
    assert "Traceback" not in text
    assert "def create_app" not in text
