"""The documentation shows every page as it is, in pictures that are quickly loaded."""

import re
from pathlib import Path

import pytest
from support.screenshots import LARGEST, PICTURES, name_of
from support.web.pngs import chunks

from tracelens_dashboard.app import run_list
from tracelens_dashboard.pages import PAGES

DOCS = PICTURES.parent
TITLES = [*(page.TITLE for page in PAGES), run_list.TITLE]


def names_of_pictures() -> set[str]:
    """Return the pictures that documentation shows or leads to."""
    root = DOCS.parent
    pages = (*DOCS.glob("*.md"), root / "README.md", root / "ARCHITECTURE.md")
    names_by_page = (
        re.findall(r"pictures/([\w-]+\.(?:png|svg))", page.read_text()) for page in pages
    )
    return {name for names in names_by_page for name in names}


@pytest.mark.parametrize("title", TITLES)
def test_every_page_is_shown(title: str) -> None:
    """A page has its picture, and docs/dashboard.md shows it."""
    assert (PICTURES / name_of(title)).exists(), "make screenshots"
    assert name_of(title) in names_of_pictures()


def test_no_picture_is_missing_or_unused() -> None:
    assert names_of_pictures() == {file.name for file in PICTURES.iterdir()}


@pytest.mark.parametrize("file", sorted(PICTURES.glob("*.png")), ids=lambda file: file.name)
def test_pictures_are_small(file: Path) -> None:
    """Each is a whole PNG with a palette, below 150 kB."""
    data = file.read_bytes()
    assert len(data) < LARGEST
    assert {b"IHDR", b"PLTE", b"IDAT", b"IEND"} <= chunks(data).keys()
