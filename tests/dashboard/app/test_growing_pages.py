"""Pages of a run that is still recorded: laid out anew where there is something that was not before."""

import pytest
from support.web.callbacks import call
from support.web.stores import slow_rank

from tracelens_dashboard.app import loading
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.components import live
from tracelens_dashboard.pages import PAGES
from tracelens_dashboard.runs.store import Store

CARDS = f"{loading.CARDS}.children"
GROWING = [page for page in PAGES if page.PATH not in loading.UNCHANGING_PAGE_PATHS]


@pytest.mark.parametrize("page", GROWING, ids=lambda page: page.TITLE)
def test_a_page_is_laid_out_anew_only_if_it_has_other_cards(page: object) -> None:
    """In the edition that was just read; the same cards stay, with what was chosen in them."""
    store = slow_rank()
    app = create_app(store)
    values = {
        "shown-run.data": "@1",
        "live-shape.data": "as before",
        "go.pathname": page.PATH,  # type: ignore[attr-defined]
        "go.search": "",
    }
    answer = call(app, CARDS, values)
    assert answer.status_code == 200
    assert answer.get_json()["response"]["live-shape"]["data"] == live.digest_shape(store)
    assert (
        call(app, CARDS, values | {"live-shape.data": live.digest_shape(store)}).status_code == 204
    )
    assert call(app, CARDS, values | {"shown-run.data": ""}).status_code == 204


def test_pages_that_always_have_the_same_cards_are_left() -> None:
    """A timeline keeps its window and pins; it is drawn anew by itself."""
    app = create_app(slow_rank())
    values = {"shown-run.data": "@1", "live-shape.data": "x", "go.pathname": "/timeline"}
    assert call(app, CARDS, values).status_code == 204


def test_a_shape_is_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes with ranks, shards, samples and tables that are not empty any more."""
    store = slow_rank()
    shape_before = live.digest_shape(store)
    assert live.digest_shape(store) == shape_before
    monkeypatch.setattr(Store, "shard_count", property(lambda _: 7))
    assert live.digest_shape(store) != shape_before
