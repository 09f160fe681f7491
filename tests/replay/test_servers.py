"""What edits of parameter servers save is what the same simulated run comes to, if it is really so."""

from copy import copy
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from support.runs.analysed import trace as run
from support.runs.server_scenarios import draw_scenario
from support.tiers import mark_slow

from tracelens.errors import InvalidArgument
from tracelens.load import prepare
from tracelens.model.trace import Trace
from tracelens.replay.edits.read import apply_edits
from tracelens.replay.whatif import Replay
from tracelens.simulator.synthetic import Scenario, duration_ns
from tracelens.verdicts.whatif import whatif

MIB, KIB = 1 << 20, 1 << 10
CLOSE, NOISE = 0.1, 0.004  # of the saving; of the run
OTHER_ORDER = 0.01  # of the run, that another order of the same bytes may save

# A large variable on one shard, and small ones, as of VGG; 30 steps of 60 to 100 ms of compute.
VARIABLES = tuple(size * KIB for size in (2300, 340, 30000, 1200, 9000, 160, 4200, 700))
LINKS = Scenario(
    ranks=4,
    steps=24,
    seed=11,
    noise=0.03,
    forward_ms=30,
    backprop_ms=50,
    shards=3,
    variables=VARIABLES,
    work=(1, 2, 0.5, 1, 1.5, 2, 1, 0.4),
    beside_compute=True,
    shared_links=True,
    link_gbytes_per_s=2.5,
    aggregate_gbytes_per_s=9.0,
    apply_ms=0.3,
    latency_us=60,
)
SCENARIOS = {
    "links": LINKS,
    "links that collapse": replace(
        LINKS, incast=0.05, ranks=6, shards=2, variables=VARIABLES[:6], work=()
    ),
    "processors": replace(LINKS, link_gbytes_per_s=16.0, aggregate_gbytes_per_s=1.2, ranks=3),
    "both, two workers": replace(
        LINKS, ranks=2, shards=5, link_gbytes_per_s=1.2, aggregate_gbytes_per_s=1.0, noise=0.0
    ),
    "links that are not shared": replace(LINKS, shared_links=False, seed=12),
    "expensive messages": replace(LINKS, message_ms=0.4, seed=13),
    "after compute": replace(LINKS, beside_compute=False, seed=14),
    "after compute, links that are not shared": replace(
        LINKS, beside_compute=False, shared_links=False, shards=6, seed=15
    ),
    "after compute, processors": replace(
        LINKS,
        beside_compute=False,
        link_gbytes_per_s=16.0,
        aggregate_gbytes_per_s=1.2,
        ranks=5,
        seed=16,
    ),
    "greedy": replace(LINKS, placement="greedy", seed=17, shards=4, ranks=8),
    "many workers": replace(LINKS, ranks=12, link_gbytes_per_s=8.0, shards=4, seed=18),
    "slow updates": replace(LINKS, apply_ms=8.0, latency_us=300, seed=19),
}
QUICK = ("links", "processors", "after compute, links that are not shared")


def edits_of(scenario: Scenario) -> dict[str, Scenario]:
    """Return edits with their scenarios."""
    changes: dict[str, dict[str, Any]] = {
        "placement=greedy": {"placement": "greedy"},
        "placement=largest_first": {"placement": "largest_first"},
        "placement=chunked": {"placement": "chunked"},
        "bandwidth*2": {"link_gbytes_per_s": 2 * scenario.link_gbytes_per_s},
        f"ranks={2 * scenario.ranks}": {"ranks": 2 * scenario.ranks},
        f"shards={scenario.shards + 2}": {"shards": scenario.shards + 2, "placement": "chunked"},
    }
    if scenario.message_ms:
        halves = {"message_ms": scenario.message_ms / 2, "latency_us": scenario.latency_us / 2}
        changes |= {"latency/2": halves}
    if scenario.message_ms or scenario.incast:
        # The simulator pays for each chunk as for a message, and the replay for one message a shard.
        changes = {name: one for name, one in changes.items() if one.get("placement") != "chunked"}
    return {name: replace(scenario, **one) for name, one in changes.items()}


@pytest.mark.parametrize("name", mark_slow(SCENARIOS, quick=QUICK))
def test_savings_are_the_true_ones(name: str) -> None:
    """Each edit saves what the run saves in which it is really so."""
    scenario = SCENARIOS[name]
    replay = Replay.from_trace(run(scenario))
    assert abs(replay.identity.run_error_share) < NOISE
    before = duration_ns(scenario)
    savings = {edit: replay.answer(edit).answers[0].saving for edit in edits_of(scenario)}
    truths = {edit: 1 - duration_ns(after) / before for edit, after in edits_of(scenario).items()}
    assert savings == pytest.approx(truths, rel=CLOSE, abs=NOISE)


@pytest.mark.parametrize(
    "edit", ["placement=chunked", "bandwidth*2", "ranks=8", "shards=5", "arrangement=central"]
)
def test_links_that_are_not_recorded_are_not_guessed(edit: str) -> None:
    """Servers that record only their own work do not show the time of pushes on links."""
    trace = run(LINKS)
    events = trace.events.filter(pl.col("op").cast(pl.String).ne_missing("receive"))
    with pytest.raises(InvalidArgument, match=r"not recorded: when servers received"):
        whatif(trace.with_(events=events, parts=None, outlines=None), edit)


def test_services_whose_operation_is_not_known_are_replayed() -> None:
    """Tables of other recorders may lack it; their processors are taken to be at work."""
    recorded = run(Scenario(ranks=3, steps=12, shards=2, shard_bytes=(1 << 20, 1 << 22)))
    without_operations = copy(recorded)
    of_server = recorded.requests["process"].is_in(recorded.shards["process"].implode())
    without_operations.__dict__["requests"] = recorded.requests.with_columns(
        op=pl.when(~of_server).then(pl.col("op"))
    )
    answers = whatif(without_operations, "rank:1=median", "phase:backprop/2").answers
    assert answers[0].saving > 0


@pytest.mark.parametrize("seed", mark_slow(range(200, 220), quick=(203, 206)))
def test_no_placement_saves_more_than_its_bytes_allow(seed: int) -> None:
    """Fewer bytes on the fullest shard save what they take on its links and processor, at most."""
    scenario = draw_scenario(seed)
    replay = Replay.from_trace(run(scenario))
    slowest = max((fault.factor for fault in scenario.faults if fault.phase == "wire"), default=1.0)
    both_ways = 2 * slowest / scenario.link_gbytes_per_s
    ns_per_byte = scenario.ranks * (both_ways + 1 / scenario.aggregate_gbytes_per_s)
    for strategy in ("greedy", "largest_first", "chunked"):
        after = replace(scenario, placement=strategy)
        fewer = max(scenario.bytes_of_shards) - max(after.bytes_of_shards)
        (answer,) = replay.answer(f"placement={strategy}").answers
        most = max(fewer, 0) * ns_per_byte / answer.before_ns
        at_least = answer.saving if answer.doubt is None else min(answer.interval)
        assert at_least <= most * (1 + CLOSE) + OTHER_ORDER


def test_incast_is_not_told_from_the_pace_of_links_if_all_always_push_at_once() -> None:
    """Then more workers are answered with an interval that holds the truth, and marked."""
    scenario = replace(LINKS, ranks=6, incast=0.1, noise=0.0, spread=0.0, work=())
    truth = 1 - duration_ns(replace(scenario, ranks=12)) / duration_ns(scenario)
    (answer,) = whatif(run(scenario), "ranks=12").answers
    assert answer.doubt is not None
    assert "share a server's link" in answer.doubt
    assert answer.interval[0] <= truth <= answer.interval[1]


def test_what_is_not_paid_for_a_message_is_said_so() -> None:
    """Servers whose services take what their bytes take have no cost of a message that could shrink."""
    with pytest.raises(
        InvalidArgument, match=r"services of parameter servers take goes by bytes alone"
    ):
        whatif(run(draw_scenario(301)), "message_cost/2")


STALL_NS = 9_000_000
HOT = Scenario(
    ranks=2,
    steps=24,
    seed=3,
    noise=0.02,
    forward_ms=6,
    backprop_ms=12,
    shards=2,
    variables=(1 << 20, 7 << 20),
    shared_links=True,
    link_gbytes_per_s=0.5,
    aggregate_gbytes_per_s=40.0,
    apply_ms=0.2,
)


def stall_pushes(trace: Trace, every: int) -> Trace:
    """Let the last push to shard 0 stall in some steps; all wait for shard 1 for longer than that."""
    last_push = pl.col("start_ns").filter((pl.col("op") == "aggregate") & (pl.col("shard") == 0))
    since_ns = last_push.max().over("step") - 1000
    until = pl.col("start_ns").filter(pl.col("op") == "reply", pl.col("shard") == 1).min()
    at_shard = (pl.col("shard") == 0) & (pl.col("step") % every == 1)
    is_later = (pl.col("end_ns") >= since_ns) & (pl.col("start_ns") < until.over("step"))
    stalls = at_shard & is_later & (pl.col("type") == "span")
    stall_ns = pl.when(stalls).then(STALL_NS).otherwise(0)
    begins_later = pl.when(pl.col("start_ns") >= since_ns).then(stall_ns).otherwise(0)
    events = trace.events.with_columns(
        start_ns=pl.col("start_ns") + begins_later, end_ns=pl.col("end_ns") + stall_ns
    )
    return trace.with_(events=events.sort("process", "start_ns"))


def test_a_stalled_message_is_not_taken_for_work_of_its_link() -> None:
    """What moves to an emptier shard takes no longer for a message that stalled there for once."""
    period_steps = 6
    clean, stalled = (
        Replay.from_trace(run(HOT)),
        Replay.from_trace(prepare(stall_pushes(run(HOT), period_steps))),
    )
    assert abs(stalled.identity.run_error_share) < NOISE
    work_ns, answers = [], []
    for replay in (clean, stalled):
        variant = apply_edits(replay.graph, ["placement=chunked"], ())
        assert variant.tasks is not None
        on_link = variant.tasks.server_index == 0
        work_ns.append(
            (variant.lag_ns[variant.tasks.edge_rows] * variant.tasks.work_share)[on_link].sum()
        )
        answers.append(replay.answer("placement=chunked").answers[0])
    assert work_ns[1] == pytest.approx(work_ns[0], rel=0.02)
    allowed = STALL_NS / period_steps / answers[0].before_ns
    assert answers[0].saving - allowed <= answers[1].saving <= answers[0].saving + NOISE
