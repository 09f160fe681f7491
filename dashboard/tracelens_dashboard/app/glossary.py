"""The glossary as a page: docs/glossary.md, which an installed package contains."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import dash_mantine_components as dmc
from dash import dcc, html

from tracelens_dashboard.components import heading

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.runs.catalog import Runs
    from tracelens_dashboard.view.state import ViewState

PATH: Final = heading.GLOSSARY
TITLE: Final = "Glossary"
_NAME: Final = "glossary.md"
_ELSEWHERE: Final = re.compile(r"\[([^\]]*)\]\((?!#)[^)]*\)")  # links to other documents


def layout(_runs: Runs, _view: ViewState) -> Component:
    """Return the page."""
    title = dmc.Title(TITLE, order=1, className="page-title")
    card = dmc.Card(dcc.Markdown(read_glossary(), className="glossary"), className="card")
    return html.Div([title, card], className="page", id="glossary")


@cache
def read_glossary() -> str:
    """Return the text below its title; documents that are not served are named, not linked."""
    text = _file().read_text(encoding="utf-8")
    return _ELSEWHERE.sub(r"\1", text.partition("\n")[2])


def _file() -> Path:
    installed = Path(__file__).parents[1] / _NAME
    return installed if installed.exists() else Path(__file__).parents[3] / "docs" / _NAME
