"""Hosts that meet only at parameter servers: what their requests look like, in true time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.ledger import Ledger, What
from benchmarks.labelled.recording import Member, Recording
from benchmarks.labelled.training import MS, ORIGIN_NS

if TYPE_CHECKING:
    from benchmarks.labelled.clocks import HostClock
    from benchmarks.labelled.setting import Setting, Times

PER_SERVER: Final = 7  # workers
LATENCY_NS: Final = 60_000
MORE_NS: Final = 200_000  # median of what the network adds
UPLOAD_NS: Final = 300_000  # that the payload of a push takes, and no answer does
SERVE_NS: Final = 2 * MS


def requests(setting: Setting, clocks: list[HostClock], step_ms: float) -> Recording:
    """Let every worker push to one server a step, each time the next one, and pull from it."""
    servers = -(-setting.hosts // (PER_SERVER + 1))
    workers, steps = setting.hosts - servers, setting.steps
    draw = setting.stream("requests")
    shape = (steps, workers)

    def way() -> Times:
        return LATENCY_NS + draw.lognormal(np.log(MORE_NS), 1.0, shape).astype(np.int64)

    rank, step = np.arange(workers), np.arange(steps)[:, None]
    server = (rank + step) % servers
    due = ORIGIN_NS + (step * step_ms * MS).astype(np.int64)
    sent = due + draw.exponential(0.1 * step_ms * MS, shape).astype(np.int64)
    received = sent + way() + UPLOAD_NS
    pushed = received + way()
    requested = pushed + way()
    replied = requested + draw.exponential(SERVE_NS, shape).astype(np.int64)
    pulled = replied + way()

    ledger = Ledger()
    worker_columns = {"process": rank, "rank": rank, "step": step}
    server_columns = {"process": workers + server, "rank": server, "step": step}
    push = (rank << 40) + 2 * step
    pull = push + 1
    begin = np.concatenate([sent[:1] - MS, pulled[:-1]])
    ledger.note(What("step", "step", depth=0), begin, pulled, worker_columns)
    for op, start, end, where, number in (
        ("push", sent, pushed, worker_columns, push),
        ("pull", pushed, pulled, worker_columns, pull),
        ("receive", received - UPLOAD_NS, received, server_columns, push),
        ("receive", requested, requested, server_columns, pull),
        ("reply", replied, replied + LATENCY_NS, server_columns, pull),
    ):
        what = What("ps", op, op, role="ps" if where is server_columns else "worker")
        ledger.note(what, start, end, where, request=number)
    members = [Member("worker", int(one), int(one)) for one in rank]
    members += [Member("ps", one, workers + one) for one in range(servers)]
    return Recording(ledger.frame(), tuple(members), tuple(clocks))
