"""What messages cost by themselves is separated from the cost of bytes, and priced by fewer messages."""

from dataclasses import replace

import pytest
from support.runs.analysed import report

from tracelens.simulator.synthetic import Scenario, duration_ns

SIZES = tuple(8192 * (1 + row % 5) ** 2 for row in range(16))
MESSAGES = Scenario(
    ranks=4, steps=40, shards=2, shared_links=True, variables=SIZES, noise=0.02, message_ms=0.2
)
BYTES = replace(MESSAGES, message_ms=0.0, variables=tuple(64 * size for size in SIZES))
OF_LINKS = ("small_messages", "ps_network_bound", "ps_incast")


def measure_saving(scenario: Scenario, fixed: Scenario) -> float:
    """Return the share of the job that goes away."""
    return 1 - duration_ns(fixed) / duration_ns(scenario)


def test_where_messages_cost_more_than_bytes_fewer_are_advised() -> None:
    """Of 16 variables both ways to one of two shards each: four messages a step, of the same bytes."""
    (finding,) = (one for one in report(MESSAGES).findings if one.kind in OF_LINKS)
    assert (finding.kind, finding.category, finding.shards) == (
        "small_messages",
        "opportunity",
        (0, 1),
    )
    assert finding.evidence["latency_ns"] == pytest.approx(200_000, rel=0.1)
    assert finding.sentence.startswith("A step sends 32 pushes and pulls of 83.0 KiB on average")
    fused = replace(MESSAGES, message_ms=0.2 * 4 / 32)
    assert finding.saving == pytest.approx(measure_saving(MESSAGES, fused), rel=0.1)


@pytest.mark.slow
def test_where_bytes_cost_most_bandwidth_is_advised() -> None:
    (finding,) = (one for one in report(BYTES).findings if one.kind in OF_LINKS)
    assert finding.kind == "ps_network_bound"
    twice = replace(BYTES, link_gbytes_per_s=4.0)
    assert finding.saving == pytest.approx(measure_saving(BYTES, twice), rel=0.1)


@pytest.mark.slow
def test_twice_the_bandwidth_halves_only_what_is_for_bytes() -> None:
    """Where two fifths of the links' work are for messages."""
    mixed = replace(BYTES, message_ms=1.7)
    (finding,) = (one for one in report(mixed).findings if one.kind in OF_LINKS)
    assert finding.kind == "ps_network_bound"
    twice = replace(mixed, link_gbytes_per_s=4.0)
    assert finding.saving == pytest.approx(measure_saving(mixed, twice), rel=0.1)
