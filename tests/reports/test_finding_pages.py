"""docs/findings: a page for every kind of finding, each with a link and a command that exist."""

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tracelens.cli import COMMANDS, build_parser
from tracelens.model.finding_kinds import KINDS

FOLDER: Final = Path(__file__).parents[2] / "docs" / "findings"
INDEX: Final = FOLDER / "README.md"
OTHERS: Final = {"inconclusive": "Inconclusive"}  # a verdict that rests on no finding
TITLES: Final = {name: entry.title for name, entry in KINDS.items()} | OTHERS
PAGES: Final = sorted(FOLDER.glob("*.md"))
HEADINGS: Final = ["What it means", "Common causes", "What to do"]
LENGTH: Final = range(15, 38)  # lines

kinds = pytest.mark.parametrize("kind", TITLES)
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def in_code(page: Path) -> list[str]:
    """Return the page's texts in code font, and each line of its code blocks."""
    blocks = text(page).split("```")
    inline = [
        " ".join(code.split()) for block in blocks[::2] for code in re.findall(r"`([^`]+)`", block)
    ]
    return inline + [
        line.strip().removeprefix("$ ") for block in blocks[1::2] for line in block.splitlines()
    ]


def links(page: Path) -> list[str]:
    """Return the targets of a page's links that lead to files."""
    targets = re.findall(r"\]\(([^)]+)\)", text(page))
    return [target for target in targets if "://" not in target]


@kinds
def test_every_kind_has_its_page(kind: str) -> None:
    """It begins with title and kind, has the three sections in order, and is short."""
    lines = text(FOLDER / f"{kind}.md").splitlines()
    assert lines[:4] == [f"# {TITLES[kind]}", "", f"`{kind}`", ""]
    assert [line[3:] for line in lines if line.startswith("## ")] == HEADINGS
    assert len(lines) in LENGTH


@pytest.mark.parametrize("kind", KINDS)
def test_what_to_do_begins_with_the_action(kind: str) -> None:
    """It is what the verdict says to do next."""
    steps = text(FOLDER / f"{kind}.md").partition("\n## What to do\n")[2]
    assert " ".join(steps.split()).startswith(KINDS[kind].action)


def test_no_page_is_left_over() -> None:
    """There is no page for a kind that does not exist."""
    assert {page.stem for page in PAGES} - {INDEX.stem} == TITLES.keys()


def test_the_index_links_every_page() -> None:
    """A row of README has title and link of each page."""
    index = text(INDEX)
    missing = [k for k, title in TITLES.items() if f"\n| [{title}]({k}.md) | `{k}` | " not in index]
    assert missing == []


@pages
def test_links_lead_to_files(page: Path) -> None:
    """Every relative link points to a file that exists, and to a heading of it if it names one."""
    for link in links(page):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), link
        assert not heading or heading in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_commands_of_the_pages_exist(page: Path) -> None:
    """Every command of TraceLens parses, and a verb alone exists."""
    for code in in_code(page):
        command = re.search(r"(?:^|\s)tracelens (.+)", code)
        if command is None:
            continue
        arguments = shlex.split(command[1])
        assert arguments[0] in COMMANDS, code
        if len(arguments) > 1:
            build_parser().parse_args(arguments)
