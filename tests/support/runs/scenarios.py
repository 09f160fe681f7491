"""Scenarios that several tests share: small, quick, each with one thing planted."""

from __future__ import annotations

from tracelens.simulator.synthetic import Fault, Scenario, random_clocks

HEALTHY = Scenario(ranks=4, steps=60)
BLOCKING = Scenario(ranks=4, steps=60, overlap=False)
SLOW_BACKPROP = Scenario(ranks=4, steps=60, faults=(Fault("backprop", (2,), factor=1.3),))
SLOW_LOADER = Scenario(ranks=4, steps=60, faults=(Fault("data", (1,), factor=8.0),))
TWO_HOSTS = Scenario(ranks=8, ranks_per_host=4, steps=60, clocks=random_clocks(2))
HOT_SHARD = Scenario(ranks=4, steps=40, shards=3, shard_bytes=(24 << 20, 4 << 20, 4 << 20))
DEVICES = Scenario(ranks=4, steps=60, on_device=True)
