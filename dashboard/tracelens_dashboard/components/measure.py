"""What of a step is measured: all of it, own work, waiting, or one category."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dash_mantine_components as dmc

from tracelens.analyses.phases import OWN_CATEGORIES
from tracelens_dashboard.components.aria import aria
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.store import Store

WHOLE: Final = "the whole step"
OWN: Final = "own work"


def choice(identity: str, store: Store) -> Component:
    """Return the select; categories that never occur are not offered."""
    names = [WHOLE, OWN, *store.times.categories]
    data = [{"value": name, "label": name_of(name)} for name in names]
    return dmc.Select(
        id=identity,
        data=data,
        value=WHOLE,
        size="xs",
        allowDeselect=False,
        **aria("what is measured"),
    )


def categories(store: Store, chosen: str | None) -> tuple[str, ...]:
    """Return the categories that a choice stands for; all of them where it makes no sense."""
    known = store.times.categories
    if chosen == OWN:
        return tuple(name for name in known if name in OWN_CATEGORIES)
    return (chosen,) if chosen in known else known


def words(chosen: str | None) -> str:
    """Say a choice within a sentence."""
    return "step time" if chosen in {None, WHOLE} else f"{name_of(chosen)} in a step"
