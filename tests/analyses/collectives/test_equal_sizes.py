"""Where all calls have one size, latency is bounded, or it is said that it is not known."""

from dataclasses import replace

import numpy as np
import pytest
from support.runs.analysed import report

from tracelens.accounting.communication import call_costs
from tracelens.simulator.synthetic import Scenario, duration_ns

EQUAL = Scenario(
    ranks=4, steps=60, buckets=16, bucket_bytes=84, message_ms=1.0, transfer_ms=0.01, noise=0.0
)
MIB = 1 << 20


def kinds(scenario: Scenario) -> set[str]:
    return {found.kind for found in report(scenario).findings}


@pytest.mark.parametrize("overlap", [True, False])
def test_a_few_bytes_are_all_latency(*, overlap: bool) -> None:
    """No network is so slow that 84 bytes take a millisecond: joined, the run is as short."""
    scenario = replace(EQUAL, overlap=overlap)
    (finding,) = (one for one in report(scenario).findings if one.kind == "small_messages")
    assert finding.evidence["latency_ns"] == pytest.approx(1e6, rel=0.1)
    messages = finding.evidence["messages_per_step"]
    joined = replace(
        scenario, buckets=messages, bucket_bytes=84 * 16 // messages, transfer_ms=0.16 / messages
    )
    truth = 1 - duration_ns(joined) / duration_ns(scenario)
    assert finding.saving == pytest.approx(truth, rel=0.1, abs=0.005)
    assert finding.interval is not None
    assert finding.interval[0] <= truth <= finding.interval[1]


def test_large_equal_calls_are_not_called_small() -> None:
    """Their bytes may take all of their time."""
    assert "small_messages" not in kinds(replace(EQUAL, bucket_bytes=MIB))


def test_the_best_link_bounds_what_bytes_take() -> None:
    """What a call takes beyond its bytes on a link that was seen is latency, or most of it."""
    ns = np.full(20, 1_000_000)
    carried = np.full(20, 100_000.0)
    seen = call_costs.bound_cost(carried, ns, best_bandwidth=1.0)
    assert seen is not None
    assert seen.latency_interval_ns == pytest.approx((8e5, 9e5))
    assert call_costs.bound_cost(carried, ns, best_bandwidth=0.15) is None
    assert call_costs.bound_cost(carried, ns, best_bandwidth=0.0) is None
    assert call_costs.bound_cost(carried[:8], ns[:8], best_bandwidth=1.0) is None


@pytest.mark.parametrize(
    ("buckets", "nbytes", "says"),
    [
        (1, 84, "fewer calls or lower latency ("),
        (1, MIB, "latency and bandwidth cannot be separated"),
    ],
    ids=["a few bytes", "not known"],
)
def test_fewer_bytes_are_not_advised_where_calls_take_the_time(
    buckets: int, nbytes: int, says: str
) -> None:
    """What is bound by communication is bound by calls, by bytes, or by what is not known."""
    bound = replace(EQUAL, buckets=buckets, bucket_bytes=nbytes, message_ms=20.0)
    (found,) = (one for one in report(bound).findings if one.kind == "exposed_communication")
    assert says in found.sentence
    assert ("fewer bytes" in found.sentence) == (nbytes == MIB)


def test_fewer_bytes_are_advised_where_bytes_take_the_time() -> None:
    """Sizes that differ tell latency from bandwidth."""
    sizes = (MIB, 16 * MIB)
    bound = replace(EQUAL, buckets=2, bucket_sizes=sizes, message_ms=0.1, transfer_ms=20.0)
    (found,) = (one for one in report(bound).findings if one.kind == "exposed_communication")
    assert "fewer bytes or faster links could shorten" in found.sentence
    assert found.evidence["latency_share"] < 0.1
