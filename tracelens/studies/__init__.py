"""The systems of papers, at their scale: the authors' questions, and the answers of published numbers.

A study is a module with ``study()``, ``ask(trace)`` and a name in `STUDIES`. Every number says whether
it follows from published ones, was assumed, or came out of a simulated run (`figures.TAGS`).
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from tracelens.studies.figures import Figure, Section, Study

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.model.trace import Trace

__all__ = ["STUDIES", "Figure", "Section", "Study", "study"]

# Each a module of this name beside this one; only the one asked for is imported.
STUDIES: Final = ("cori", "phub", "allreduce", "interleaving", "easgd")


class _Module(Protocol):
    def study(self) -> Study:
        """Compute and simulate."""

    def ask(self, trace: Trace, /) -> Section:
        """Measure the same of a recorded run."""


def study(name: str, runs: Mapping[str, Trace] | None = None) -> Study:
    """Make a study, and ask the same of recorded runs, by their names.

    Raises:
        UnusableInput: a run does not hold what is asked for.
    """
    module = cast("_Module", import_module(f"{__name__}.{name}"))
    paper_study, runs = module.study(), runs or {}
    sections = [*paper_study.sections]
    for run, trace in runs.items():
        section = module.ask(trace)
        name = f" ({run})" if len(runs) > 1 else ""
        sections.append(replace(section, question=f"{section.question}{name}"))
    return replace(paper_study, sections=tuple(sections))
