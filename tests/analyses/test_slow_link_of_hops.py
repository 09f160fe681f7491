"""A slow link is found where ranks recorded only the sends that their collectives are made of."""

import pytest
from benchmarks.labelled.endtoend import perform
from benchmarks.labelled.kinds import KINDS


@pytest.mark.parametrize("name", ["slow link", "link inside a host"])
def test_slow_link_is_named_and_priced(name: str) -> None:
    kind = next(index for index, one in enumerate(KINDS) if one.name == name)
    assert perform((kind, 8, "mild", "lognormal", 7))["right"]
