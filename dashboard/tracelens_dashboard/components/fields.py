"""Fields of forms in the one size that all pages use; each has a name for screen readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import dash_mantine_components as dmc

from tracelens_dashboard.ids import aria

if TYPE_CHECKING:
    from dash.development.base_component import Component

Choices = Iterable["str | tuple[str, str]"]  # values, or values with their labels


def _options(choices: Choices) -> list[Any]:
    pairs = ((choice, choice) if isinstance(choice, str) else choice for choice in choices)
    return [{"value": value, "label": label} for value, label in pairs]


def select(
    identity: Any, choices: Choices, label: str, *, value: str | None = None, **options: Any
) -> Component:
    """Return a field in which one value is chosen: `value`, or the first one without it."""
    choice_data = _options(choices)
    chosen_value = choice_data[0]["value"] if value is None else value
    arguments = {"id": identity, "data": choice_data, "value": chosen_value, "size": "xs"} | options
    return dmc.Select(allowDeselect=False, **arguments, **aria(label))


def multi_select(
    identity: Any, choices: Choices, label: str, *, value: list[str], **options: Any
) -> Component:
    """Return a field in which several values are chosen."""
    settings = {"id": identity, "data": _options(choices), "value": value, "size": "xs"} | options
    return dmc.MultiSelect(**settings, **aria(label))


def text_input(identity: Any, label: str, placeholder: str, **options: Any) -> Component:
    """Return a field for text; it is read on Enter, or when it is left, unless options differ."""
    settings = {"id": identity, "placeholder": placeholder, "debounce": True, "size": "xs"}
    return dmc.TextInput(**(settings | options), **aria(label))


def number_input(identity: Any, label: str, **options: Any) -> Component:
    """Return a field for a number."""
    return dmc.NumberInput(**({"id": identity, "size": "xs"} | options), **aria(label))


def button(label: str, identity: Any = None, **options: Any) -> Component:
    """Return a plain button; `options` may make it smaller, or name it for screen readers."""
    settings = {"variant": "default", "size": "xs"} | ({"id": identity} if identity else {})
    return dmc.Button(label, **(settings | options))
