"""Where statistics cannot speak, the report says so instead."""

import pytest
from support.runs.analysed import faults, report, trace

from tracelens.simulator.synthetic import Fault, Scenario
from tracelens.verdicts.report import analyze

SLOW = (Fault("forward", (0,), factor=3),)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (Scenario(ranks=1, steps=60, faults=SLOW), "1 worker rank: straggler tests compare ranks"),
        (Scenario(ranks=4, steps=29, faults=SLOW), "Only 29 steps found; straggler tests need 30"),
        (Scenario(ranks=2, steps=8, faults=SLOW), "Only 8 steps found; straggler tests need 30"),
    ],
    ids=["one rank", "too few steps", "two ranks, too few steps"],
)
def test_no_verdict_without_grounds(scenario: Scenario, words: str) -> None:
    """No fault however slow a rank is, and a note that says why."""
    found = report(scenario)
    assert faults(found) == []
    (note,) = (note for note in found.notes if note.kind == "unjudged")
    assert note.sentence.startswith(words)


def test_thirty_steps_are_enough() -> None:
    """With thirty steps a gross lateness is found, and nothing is left unjudged."""
    found = report(Scenario(ranks=4, steps=30, faults=SLOW))
    assert [finding.ranks for finding in faults(found)] == [(0,)]
    assert not [note for note in found.notes if note.kind == "unjudged"]


def test_steps_that_cannot_be_compared_are_counted() -> None:
    """Thirty steps are not too few, but those that are left of them."""
    slow = Fault("forward", (0, 1, 2, 3), steps=(20, 29), factor=9)
    found = report(Scenario(ranks=4, steps=30, faults=(slow,)))
    (note,) = (note for note in found.notes if note.kind == "unjudged")
    assert note.sentence.startswith("Only 15 of 30 steps can be compared: not the first 5")
    assert note.sentence.endswith("straggler tests need 25.")


def test_majority_is_told() -> None:
    """When most ranks are late the finding says that its reference is weak."""
    fault = Fault("forward", (0, 1, 2, 3), steps=(20, 39), factor=2)
    found = report(Scenario(ranks=9, ranks_per_host=9, steps=60, faults=(fault,)))
    (late,) = faults(found)
    assert late.ranks == (0, 1, 2, 3)
    assert "no reliable baseline" in late.sentence


def test_a_run_without_steps_has_a_report() -> None:
    """Workers that recorded nothing of a step leave an empty verdict, not an error."""
    whole = trace(Scenario(ranks=2, steps=5))
    empty = analyze(whole.with_(events=whole.events.head(0), steps=whole.steps.head(0)))
    assert (empty.efficiency, faults(empty), empty.summary.steps) == (None, [], 0)
