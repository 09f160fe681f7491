"""The library that draws charts arrives as installed, once, and in time."""

from __future__ import annotations

from plotly.offline import get_plotlyjs
from support.web.stores import slow_rank

from tracelens_dashboard.app import server
from tracelens_dashboard.app.server import create_app


def test_it_is_the_installed_one_and_says_that_all_of_it_is_called() -> None:
    """The hint counts in a script's first line only; the address changes with the version."""
    answer = create_app(slow_rank()).server.test_client().get(server.LIBRARY_ADDRESS)
    first, _, rest = answer.text.partition("\n")
    assert first == "//# allFunctionsCalledOnLoad"
    assert rest == get_plotlyjs()
    assert answer.mimetype == "text/javascript"
    assert "immutable" in answer.headers["Cache-Control"]


def test_a_page_asks_for_it_before_dash_does() -> None:
    """What runs first runs once: a second time, it would bring the library again."""
    page = create_app(slow_rank()).server.test_client().get("/").text
    scripts = [part.partition(">")[0] for part in page.split("<script ")[1:]]
    early = [script for script in scripts if "/early/" in script]
    assert early == scripts[:2]
    assert f'data-address="{server.LIBRARY_ADDRESS}"' in early[1]
