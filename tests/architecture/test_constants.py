"""Numbers that were chosen are few, and stand in one table with what they mean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from support.layout import Module, constants, imported_names, modules

TABLE: Final = "tracelens.stats.constants"
ROOMS: Final = (
    "tracelens.accounting.communication",
    "tracelens.accounting.jitter",
    "tracelens.accounting.sampled_code",
    "tracelens.analyses",
    "tracelens.stats",
    "tracelens.verdicts",
)
DETECTOR: Final = (
    "tracelens.analyses.stragglers",
    "tracelens.stats.changepoint",
    "tracelens.stats.null_model",
    "tracelens.stats.robust",
    "tracelens.stats.window_scan",
)
MOST: Final = 60
MOST_OF_DETECTOR: Final = 30
# What nobody chose.
MATHEMATICS: Final = {
    ("tracelens.stats.null_model", "_MEDIANS"),  # variances of medians of normal numbers
    ("tracelens.stats.robust", "_TO_SIGMA"),  # a normal distribution's deviation, by the median one
}
ENTRY: Final = re.compile(r"[A-Z_]+: Final = \S+(?: << \d+)?  # [^:]+: \S.*")


def _in(rooms: tuple[str, ...]) -> dict[str, Module]:
    return {name: module for name, module in modules().items() if name.startswith(rooms)}


def _chosen(rooms: tuple[str, ...]) -> set[tuple[str, str]]:
    return set(constants(_in(rooms))) - MATHEMATICS


def test_constants_are_few() -> None:
    assert len(_chosen(ROOMS)) <= MOST


def test_those_of_the_detector_are_fewer() -> None:
    """What its modules define, and what they take from the table."""
    taken = {
        (TABLE, name) for module in _in(DETECTOR).values() for name in imported_names(module, TABLE)
    }
    assert taken
    assert len(taken | _chosen(DETECTOR)) <= MOST_OF_DETECTOR


def test_all_of_them_are_in_the_table() -> None:
    assert {(where, name) for where, name in _chosen(ROOMS) if where != TABLE} == set()


def test_every_entry_says_its_unit_and_what_it_means() -> None:
    lines = Path(modules()[TABLE].path).read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if ": Final = " in line]
    assert len(entries) == len(_chosen((TABLE,)))
    assert [line for line in entries if not ENTRY.fullmatch(line)] == []


def test_every_entry_is_used() -> None:
    rooms = _in((*ROOMS, "tracelens.replay"))
    used = {name for module in rooms.values() for name in imported_names(module, TABLE)}
    assert {name for _, name in _chosen((TABLE,))} - used == set()
