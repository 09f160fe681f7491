"""The systems of papers, at their scale: what the authors asked, and what follows from what is known.

A study is a module with ``study(trace)`` and a name in `STUDIES`. Every number says whether it follows
from published ones, was assumed, or came out of a simulated run (`figures.TAGS`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from tracelens.studies.figures import Figure, Section, Study

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

__all__ = ["STUDIES", "Figure", "Section", "Study", "study"]

# Each a module of this name beside this one; only the one asked for is imported.
STUDIES: Final = ("cori", "phub", "allreduce", "interleaving", "easgd")


class _Module(Protocol):
    def study(self, trace: Trace | None, /) -> Study:
        """Compute, simulate, and look at a trace."""


def study(name: str, trace: Trace | None = None) -> Study:
    """Make a study; `trace` is a run to ask the same of, where a study has a question for it.

    Raises:
        UnusableInput: the trace does not hold what is asked for.
    """
    return cast("_Module", import_module(f"{__name__}.{name}")).study(trace)
