"""Attributes of a trace that were renamed answer to their old name for one version."""

import copy
import pickle

import pytest
from support.runs.traces import span, trace_of

from tracelens.model import trace as module


@pytest.mark.parametrize(("old_name", "new_name"), sorted(module._FORMER_NAMES.items()))
def test_a_former_name_is_that_of_the_present_attribute(old_name: str, new_name: str) -> None:
    trace = trace_of([span(0, "forward", 0, 5)])
    with pytest.warns(DeprecationWarning, match=f"Trace.{old_name} is Trace.{new_name} now"):
        assert getattr(trace, old_name) is not None
    with pytest.raises(AttributeError, match="no attribute 'later'"):
        trace.later  # type: ignore[attr-defined]  # noqa: B018
    assert copy.copy(trace).processes is trace.processes
    assert pickle.loads(pickle.dumps(trace)).processes.equals(trace.processes)  # noqa: S301
