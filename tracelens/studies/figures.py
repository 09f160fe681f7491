"""What a study says: numbers in sections, each with what the paper says of it, and its origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Tag = Literal["derived", "assumed", "simulated", "measured", "consistency check"]
TAGS: Final[dict[Tag, str]] = {
    "derived": "follows from published numbers or from the network's architecture",
    "assumed": "follows from numbers that are not published, see below",
    "simulated": "of a simulated run, whose numbers are tagged in its preset or said below",
    "measured": "of a recorded run",
    "consistency check": "a scenario was built from this very number: it comes back, no more",
}


@dataclass(frozen=True)
class Figure:
    """A number; `published` is what the paper's abstract says of it, null where it says nothing.

    `unit` is ``%`` (the value is a share), ``x``, a unit of time, bytes or bandwidth, or nothing.
    """

    name: str
    value: float
    unit: str
    tag: Tag
    published: str | None = None


@dataclass(frozen=True)
class Section:
    """A question that the paper's authors asked, the numbers that answer it, and what they say."""

    question: str
    figures: tuple[Figure, ...]
    answer: str


@dataclass(frozen=True)
class Study:
    """A paper's system at its scale; `sources` says what its scenario takes for granted."""

    name: str
    paper: str
    sections: tuple[Section, ...]
    sources: tuple[str, ...]

    def find_figure(self, name: str) -> Figure:
        """Return a number by its name; KeyError if it does not exist."""
        return self._by_name[name]

    @property
    def _by_name(self) -> dict[str, Figure]:
        figures: dict[str, Figure] = {}
        for section in self.sections:
            figures |= {figure.name: figure for figure in section.figures}
        return figures

    @property
    def tags(self) -> Sequence[Tag]:
        """Which tags its numbers have."""
        used = {figure.tag for figure in self._by_name.values()}
        return [tag for tag in TAGS if tag in used]
