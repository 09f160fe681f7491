"""Every title is in the field's words, and says behind a "?" what it means."""

import json
from typing import Any

import pytest
from plotly.utils import PlotlyJSONEncoder
from support.web.stores import slow_rank

from tracelens_dashboard.app import glossary
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.components.heading import GLOSSARY
from tracelens_dashboard.pages import PAGES, Page
from tracelens_dashboard.view.state import ViewState

LONGEST = 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.TITLE)
def test_titles_are_explained(page: Page) -> None:
    """Each card that has a table, too, has a sentence; a title is no question."""
    layout = json.loads(json.dumps(page.layout(slow_rank(), ViewState()), cls=PlotlyJSONEncoder))
    titles = [
        component for component in list_components(layout) if component.get("type") == "Title"
    ]
    titles_shown = [str(title["props"]["children"]) for title in titles]
    assert [word for word in titles_shown if word.endswith("?")] == []
    explained_titles = {
        props["aria-label"].removeprefix("what is: ")
        for component in list_components(layout)
        if "what is: " in str((props := component.get("props", {})).get("aria-label", ""))
    }
    assert explained_titles <= set(titles_shown)


def list_components(tree: Any) -> list[dict[str, Any]]:
    """List all components of a layout."""
    if isinstance(tree, list):
        return [component for child in tree for component in list_components(child)]
    if not isinstance(tree, dict):
        return []
    return [tree, *(component for child in tree.values() for component in list_components(child))]


def test_explanations_are_a_sentence_or_two() -> None:
    """Longer explanations belong into the documentation."""
    explained = {card.title: card.explanation for page in PAGES for card in page.CARDS}
    assert len(explained) > 30
    for title, sentence in explained.items():
        assert sentence.endswith("."), title
        assert len(sentence) <= LONGEST, title


def test_the_glossary_page_shows_the_documentation() -> None:
    """It is the one of the documentation; what is not served there is no link."""
    app = create_app(slow_rank())
    assert app.server.test_client().get(GLOSSARY).status_code == 200
    assert "**arrival skew**" in glossary.read_glossary()
    assert "](" not in glossary.read_glossary().replace("](#", "")
