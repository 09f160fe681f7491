"""The waterfall leads from all time down to the useful share, without a gap."""

import pytest

from tracelens.model.result import Efficiency, Share
from tracelens.reports.messages import name_cause
from tracelens_dashboard.figures import overview
from tracelens_dashboard.theme import LIGHT

EFFICIENCY = Efficiency(
    achieved=0.6,
    waterfall=(Share("data", 0.1), Share("wait", 0.25), Share("gc", 0.0001), Share("x<b>", 0.0499)),
    pop={},
    job_ns=1,
    uninstrumented=0.0,
)


def test_each_bar_begins_where_the_one_above_ended() -> None:
    """From 100 % down, bar after bar; what is too small to see is left to the table."""
    drawing = overview.waterfall(EFFICIENCY, LIGHT)
    bars = drawing.figure.data[0]
    ends = [base + length for base, length in zip(bars.base, bars.x, strict=True)]
    assert bars.base[0] == 0
    assert ends[1] == pytest.approx(100)
    assert ends[2] == pytest.approx(bars.base[1])
    assert bars.x[-1] == pytest.approx(60)
    assert len(bars.x) == 5
    assert {row["part"] for row in drawing.rows} >= {"garbage collection", "efficiency"}


def test_the_sentence_names_the_largest_loss() -> None:
    """One sentence holds the efficiency and what takes most of the rest."""
    sentence = overview.waterfall(EFFICIENCY, LIGHT).summary
    assert sentence == f"60 % parallel efficiency; largest loss: {name_cause('wait')}."


def test_a_cause_of_unknown_name_is_inert() -> None:
    """Markup in a cause's name is shown, not read."""
    assert "x&lt;b&gt;" in overview.waterfall(EFFICIENCY, LIGHT).figure.data[0].y


def test_without_steps_it_says_why_there_is_nothing() -> None:
    """A run without steps gets a sentence instead of an empty chart."""
    drawing = overview.waterfall(None, LIGHT)
    assert drawing.figure.layout.annotations[0].text.replace("<br>", " ") == drawing.summary
