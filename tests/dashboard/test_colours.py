"""Text can be read, categories can be told apart, and victims stay paler than culprits."""

from __future__ import annotations

from itertools import combinations

import pytest

from tracelens.lod.lanes import CODES, FIRST_LEVEL, LABELS, LEVELS
from tracelens_dashboard.theme import (
    DARK,
    LIGHT,
    Theme,
    contrast,
    mixed,
    name_of,
    palette,
    readable,
    rgb,
)

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
CULPRITS = ("data", "forward", "backprop", "update", "checkpoint", "gc", "transfer")


@THEMES
def test_all_text_can_be_read(theme: Theme) -> None:
    """Primary, secondary and loss text have a contrast of at least 4.5 on a card."""
    for colour in (theme.text, theme.secondary, theme.loss):
        assert contrast(rgb(colour), rgb(theme.surface)) >= 4.5


@THEMES
def test_a_call_can_be_read_however_red_it_is(theme: Theme) -> None:
    """The text on it is light or dark, whichever is told from it better; black on white is 21."""
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    for tenth in range(11):
        ground = mixed(theme.loss, theme.flame, tenth / 10)
        assert contrast(rgb(readable(ground)), ground) >= 4.5


@THEMES
def test_culprits_stand_out_from_victims(theme: Theme) -> None:
    """Waiting contrasts less with the card than any work or transfer does."""
    pale = max(
        contrast(rgb(theme.categories[name]), rgb(theme.surface)) for name in ("wait", "ps_queue")
    )
    assert pale < min(
        contrast(rgb(theme.categories[name]), rgb(theme.surface)) for name in CULPRITS
    )


@THEMES
def test_categories_have_colours_of_their_own(theme: Theme) -> None:
    """No two categories of a worker share a colour, and each has a name in words."""
    names = [name for name in LABELS if name != "apply"]  # it is a weight update, too
    for first, second in combinations(names, 2):
        assert theme.categories[first] != theme.categories[second]
    assert all(name_of(name) for name in LABELS)


@THEMES
def test_the_palette_gives_every_code_its_colour(theme: Theme) -> None:
    """A category's index holds its colour; the levels run from the ramp's first to its last."""
    colours = palette(theme.name)
    assert len(colours) == FIRST_LEVEL + LEVELS
    for label, code in CODES.items():
        assert colours[code] == rgb(theme.categories[label])
    assert colours[FIRST_LEVEL] == rgb(theme.ramp[0])
    assert colours[-1] == rgb(theme.ramp[-1])
