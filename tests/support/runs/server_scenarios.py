"""Random runs with parameter servers, bound by compute, links or processors, with and without faults."""

from __future__ import annotations

from random import Random

from tracelens.simulator.synthetic import Fault, Scenario

# What takes how long for all workers, as shares of a step's compute: a shard's link, its processor.
BOUNDS = {"compute": (0.15, 0.1), "link": (1.3, 0.15), "processor": (0.2, 1.2), "both": (0.8, 0.8)}


def draw_scenario(seed: int) -> Scenario:
    """Draw a run with servers: beside compute if `seed` is even, after it if not."""
    draw = Random(seed)
    ranks, shards = draw.choice((2, 3, 8)), draw.choice((1, 2, 3, 5))
    variables = tuple(
        int(draw.lognormvariate(0, 1.2) * (1 << 20)) for _ in range(draw.choice((4, 8)))
    )
    bound, compute_ms = draw.choice(list(BOUNDS.values())), draw.uniform(40, 90)
    link, processor = (
        share * draw.uniform(0.6, 1.4) * compute_ms * 1e-3 / ranks for share in bound
    )
    of_shard = sum(variables) / shards / 1e9
    fault = draw.choice(("none", "slow", "stall", "slow link"))
    faults = {
        "none": (),
        "slow": (Fault("backprop", (draw.randrange(ranks),), factor=draw.uniform(1.2, 2.0)),),
        "stall": tuple(
            Fault("data", (rank,), extra_ms=draw.uniform(20, 80), every=draw.choice((3, 5, 7)))
            for rank in draw.sample(range(ranks), 2)
        ),
        "slow link": (Fault("wire", (draw.randrange(shards),), factor=1.5),),
    }
    return Scenario(
        ranks=ranks,
        steps=24,
        seed=seed,
        noise=draw.choice((0.02, 0.1, 0.3)),
        forward_ms=compute_ms * 0.35,
        backprop_ms=compute_ms * 0.65,
        shards=shards,
        variables=variables,
        beside_compute=seed % 2 == 0,
        shared_links=draw.choice((True, False)),
        link_gbytes_per_s=of_shard / link,
        aggregate_gbytes_per_s=of_shard / processor,
        apply_ms=draw.choice((0.2, 1, 4)),
        latency_us=draw.choice((20, 100, 300)),
        faults=faults[fault],
        placement=draw.choice(("round_robin", "greedy")),
    )
