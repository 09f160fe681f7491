"""The quick tests of `make test`, and the slow ones that only `make test-all` adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from support.turns import select_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from _pytest.mark.structures import ParameterSet
    from hypothesis import strategies as st

__all__ = ["check_examples", "few_or_many", "mark_slow", "mark_slow_in_turn"]


def mark_slow(values: Iterable[Any], quick: Collection[Any]) -> list[ParameterSet]:
    """Return the parameters of a test: all `values`, marked slow unless they are `quick`."""
    return [
        pytest.param(value, marks=() if value in quick else pytest.mark.slow) for value in values
    ]


def mark_slow_in_turn(values: Sequence[Any], quick: Collection[Any]) -> list[ParameterSet]:
    """Return the `quick` ones of `values`, and, marked slow, those of the others whose turn it is."""
    others = select_turn([value for value in values if value not in quick])
    return mark_slow([value for value in values if value in quick or value in others], quick)


def few_or_many(few: int, many: int) -> list[ParameterSet]:
    """Return a number of inputs for each of the two tiers."""
    return [pytest.param(few), pytest.param(many, marks=pytest.mark.slow)]


def check_examples(
    check: Callable[..., None], count: int, *strategies: st.SearchStrategy[Any]
) -> None:
    """Call `check` with `count` examples that Hypothesis draws."""
    settings(max_examples=count)(given(*strategies)(check))()
