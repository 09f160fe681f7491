"""Titles of pages and cards in the field's words, and a sentence about each behind a "?"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import dcc, html

from tracelens_dashboard.ids import aria

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

GLOSSARY: Final = "/glossary"


def page_title(title: str, explanation: str) -> Component:
    """Return a page's title and what it means."""
    return dmc.Group(
        [dmc.Title(title, order=1, className="page-title"), _question_mark(title, explanation)],
        className="page-head",
        gap="xs",
    )


def card_title(title: str, explanation: str, *, suffix: str = "") -> Component:
    """Return a card's title and what it means; a `suffix`, such as a run's name, is not explained."""
    name = dmc.Title(title + suffix, order=2, className="card-title")
    parts = [name, _question_mark(title, explanation)]
    return dmc.Group(parts, className="card-head", gap=6, wrap="nowrap")


def _question_mark(title: str, explanation: str) -> Component:
    """Return the "?" of a title; its explanation stays open until it is closed."""
    link = dcc.Link("Glossary", href=GLOSSARY, className="way")
    answer = html.Div([html.P(explanation), link], className="what-says")
    name = aria(f"what is: {title}")
    return html.Details([html.Summary("?", className="what", **name), answer], className="what-is")


def page_in_words(
    heading: Sequence[Component], *lines: str | Component, identity: str = ""
) -> Component:
    """Return a page without charts: below its heading, a card with lines of text."""
    paragraphs = [html.P(line) if isinstance(line, str) else line for line in lines]
    id_option: dict[str, Any] = {"id": identity} if identity else {}
    card = dmc.Card(paragraphs, className="card prose")
    return html.Div([*heading, card], className="page", **id_option)
