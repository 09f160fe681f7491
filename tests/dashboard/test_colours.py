"""Text can be read, categories can be told apart, and victims stay paler than culprits."""

import re
from itertools import combinations
from pathlib import Path

import pytest

import tracelens_dashboard
from tracelens.lod.colours import mix_colours, parse_rgb
from tracelens.lod.lanes import CODES, FIRST_LEVEL, LABELS, LEVELS
from tracelens_dashboard.theme import (
    DARK,
    LIGHT,
    Theme,
    contrast,
    name_of,
    palette,
    readable,
)

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.scheme)
HERE = Path(tracelens_dashboard.__file__).parent
PAGES_STYLE, REPORT_STYLE = HERE / "assets" / "app.css", HERE / "export" / "report.css"
CULPRITS = ("data", "forward", "backprop", "update", "checkpoint", "gc", "transfer")


@THEMES
def test_all_text_can_be_read(theme: Theme) -> None:
    """Primary, secondary and loss text have a contrast of at least 4.5 on a card."""
    for colour in (theme.text_colour, theme.secondary_colour, theme.loss_colour):
        assert contrast(parse_rgb(colour), parse_rgb(theme.surface_colour)) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_verdicts_name_has_colours_of_its_own(scheme: str) -> None:
    """Each stands out from a card and from the others, and is the same in a report that is sent."""
    page, report = (_variables(file)[scheme] for file in (PAGES_STYLE, REPORT_STYLE))
    names = ("loss", "opportunity", "healthy", "secondary")
    assert [page[name] for name in names] == [report[name] for name in names]
    assert len({page[name] for name in names}) == len(names)
    for name in names:
        assert contrast(parse_rgb(page[name]), parse_rgb(page["surface"])) >= 3


def _variables(file: Path) -> dict[str, dict[str, str]]:
    """Return the colours that a style sheet names, first in the light scheme, then in the dark one."""
    blocks = re.findall(r":root[^{]*{([^}]*)}", file.read_text())
    found = [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks]
    return dict(zip(("light", "dark"), found, strict=True))


@THEMES
def test_a_call_can_be_read_however_red_it_is(theme: Theme) -> None:
    """The text on it is light or dark, whichever is told from it better; black on white is 21."""
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    for tenth in range(11):
        ground = mix_colours(theme.loss_colour, theme.flame_colour, tenth / 10)
        assert contrast(parse_rgb(readable(ground)), ground) >= 4.5


@THEMES
def test_culprits_stand_out_from_victims(theme: Theme) -> None:
    """Waiting contrasts less with the card than any work or transfer does."""
    pale = max(
        contrast(parse_rgb(theme.colour_by_category[name]), parse_rgb(theme.surface_colour))
        for name in ("wait", "ps_queue")
    )
    assert pale < min(
        contrast(parse_rgb(theme.colour_by_category[name]), parse_rgb(theme.surface_colour))
        for name in CULPRITS
    )


@THEMES
def test_categories_have_colours_of_their_own(theme: Theme) -> None:
    """No two categories of a worker share a colour, and each has a name in words."""
    names = [name for name in LABELS if name != "apply"]  # it is a weight update, too
    for first, second in combinations(names, 2):
        assert theme.colour_by_category[first] != theme.colour_by_category[second]
    assert all(name_of(name) for name in LABELS)


@THEMES
def test_the_palette_gives_every_code_its_colour(theme: Theme) -> None:
    """A category's index holds its colour; the levels run from the ramp's first to its last."""
    colours = palette(theme.scheme)
    assert len(colours) == FIRST_LEVEL + LEVELS
    for label, code in CODES.items():
        assert colours[code] == parse_rgb(theme.colour_by_category[label])
    assert colours[FIRST_LEVEL] == parse_rgb(theme.ramp_colours[0])
    assert colours[-1] == parse_rgb(theme.ramp_colours[-1])


@THEMES
def test_a_colour_has_one_meaning(theme: Theme) -> None:
    """No category shares its colour with amounts of none, with groups, or with what is named."""
    alone = (
        theme.accent_colour,
        theme.loss_colour,
        theme.slower_colour,
        theme.faster_colour,
        theme.quiet_colour,
        *theme.series_colours,
    )
    assert len(set(alone)) == len(alone)
    assert set(alone) & set(theme.colour_by_category.values()) == set()


def test_no_figure_gives_a_category_s_colour_to_something_else() -> None:
    """Categories are coloured by their own names; groups take `series`."""
    for file in (HERE / "figures").rglob("*.py"):
        fixed = re.findall(r'theme\.categories\["(\w+)"\]', file.read_text())
        assert set(fixed) <= {"wait", "transfer"}, file.name


@THEMES
def test_a_larger_scale_pales_what_is_the_same(theme: Theme) -> None:
    """Two runs side by side share a scale: the lesser one never reaches the ramp's end."""
    at_full_scale, at_half_scale = palette(theme.scheme), palette(theme.scheme, 0.5)
    last_level = FIRST_LEVEL + LEVELS - 1
    middle = FIRST_LEVEL + (LEVELS - 1) // 2
    assert at_half_scale[FIRST_LEVEL] == at_full_scale[FIRST_LEVEL]
    assert at_half_scale[last_level] != at_full_scale[last_level]
    assert (
        max(
            abs(a - b)
            for a, b in zip(at_half_scale[last_level], at_full_scale[middle], strict=True)
        )
        <= 40
    )
