"""Every title is in the field's words, and says behind a "?" what it means."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from plotly.utils import PlotlyJSONEncoder
from support.web.stores import slow_rank

import tracelens_dashboard
from tracelens_dashboard.app import glossary
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.components.heading import EXPLAINED, GLOSSARY
from tracelens_dashboard.pages import PAGES
from tracelens_dashboard.view.state import ViewState

if TYPE_CHECKING:
    from tracelens_dashboard.pages import Page

LONGEST = 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.TITLE)
def test_titles_are_explained(page: Page) -> None:
    """Each card that has a table, too, has a sentence; a title is no question."""
    layout = json.loads(json.dumps(page.layout(slow_rank(), ViewState()), cls=PlotlyJSONEncoder))
    titles = [one for one in walked(layout) if one.get("type") == "Title"]
    words = [str(title["props"]["children"]) for title in titles]
    assert [word for word in words if word.endswith("?")] == []
    asked = {
        props["aria-label"].removeprefix("what is: ")
        for one in walked(layout)
        if "what is: " in str((props := one.get("props", {})).get("aria-label", ""))
    }
    assert asked <= set(EXPLAINED)
    assert asked <= set(words)


def test_every_title_that_a_card_may_get_is_explained() -> None:
    """Also those of runs that are not at hand here: of many hosts, of servers, of a comparison."""
    pages = Path(tracelens_dashboard.__file__).parent / "pages"
    titles: set[str] = set()
    for file in pages.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name == "card" and len(node.args) > 2:
                titles |= texts(node.args[1], tree)
    assert len(titles) > 20
    assert titles - set(EXPLAINED) == set()


def texts(title: ast.expr, tree: ast.Module) -> set[str]:
    """List what an expression for a title may be: a text, or what a function of the module returns."""
    if isinstance(title, ast.Constant):
        return {str(title.value)}
    assert isinstance(title, ast.Call)
    assert isinstance(title.func, ast.Name)
    wanted = title.func.id
    made = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == wanted)
    returned = [n.value for n in ast.walk(made) if isinstance(n, ast.Return)]
    return {
        str(n.value)
        for value in returned
        if value
        for n in ast.walk(value)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }


def walked(thing: Any) -> list[dict[str, Any]]:
    """List all components of a layout."""
    if isinstance(thing, list):
        return [one for part in thing for one in walked(part)]
    if not isinstance(thing, dict):
        return []
    return [thing, *(one for part in thing.values() for one in walked(part))]


def test_explanations_are_a_sentence_or_two() -> None:
    """What is longer stands in the documentation."""
    for title, sentence in EXPLAINED.items():
        assert sentence.endswith("."), title
        assert len(sentence) <= LONGEST, title


def test_the_glossary_is_a_page() -> None:
    """It is the one of the documentation; what is not served there is no link."""
    app = create_app(slow_rank())
    assert app.server.test_client().get(GLOSSARY).status_code == 200
    assert "**arrival skew**" in glossary.words()
    assert "](" not in glossary.words().replace("](#", "")
