"""How well clocks are aligned: 64 hosts, each with its own clock, whose true times are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from benchmarks.labelled.clocks import HostClock, skewed
from benchmarks.labelled.clocks_at_servers import requests
from benchmarks.labelled.label import Seen
from benchmarks.labelled.ledger import WORLD, Ledger, What
from benchmarks.labelled.peers import hta
from benchmarks.labelled.recording import Member, Recording
from benchmarks.labelled.setting import Setting
from benchmarks.labelled.training import MS, ORIGIN_NS

from tracelens.align.clocks.common import align

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.setting import Times

HOSTS: Final = 64
STEPS: Final = 2000
STEP_MS: Final = 200.0  # 400 s in all: clocks drift by milliseconds
CALLS: Final = 5  # collectives a step
LAG_NS: Final = 8_000
JUMP_NS: Final = 500_000
_SLOW: Final = 17  # the host whose rank is late, jumps or wanders


@dataclass(frozen=True)
class Situation:
    """A run: what is wrong with it, and what clocks are asked to be."""

    name: str
    clocks: Callable[[Setting], list[HostClock]] = skewed
    late_ms: float = 0.0
    lag_by_host: bool = False
    loose: float = 0.0  # share of collectives that let everybody go at once
    at_servers: bool = False  # there are no collectives
    target_us: float | None = None


def _jumping(setting: Setting) -> list[HostClock]:
    clocks = skewed(setting)
    at = ORIGIN_NS + int(setting.stream("jump").uniform(0.2, 0.8) * setting.steps * STEP_MS * MS)
    clocks[_SLOW % setting.hosts] = replace(
        clocks[_SLOW % setting.hosts], jump_ns=JUMP_NS, jump_at_ns=at
    )
    return clocks


def _wandering(setting: Setting) -> list[HostClock]:
    phases = setting.stream("wander").uniform(0, 2 * np.pi, setting.hosts)
    return [
        replace(clock, wander_ppm=1.0, phase=float(p))
        for clock, p in zip(skewed(setting), phases, strict=True)
    ]


SITUATIONS: Final = (
    Situation("equal exits", target_us=1.5),
    Situation("one rank 30 % late", late_ms=60.0, target_us=1.5),
    Situation("one rank 2 % late", late_ms=4.0, target_us=1.5),
    Situation("exit lag differs by rank", lag_by_host=True),
    Situation("a clock jumps by 0.5 ms", clocks=_jumping, target_us=1.5),
    Situation("rates wander by 1 ppm", clocks=_wandering, target_us=40.0),
    Situation("30 % do not synchronise", late_ms=10.0, loose=0.3, target_us=1.5),
    Situation("requests to servers only", at_servers=True),
)


def perform(task: tuple[int, int, int, int]) -> dict[str, Any]:
    """Make a run in a situation, align it, and measure the error of every event."""
    index, seed, hosts, steps = task
    situation = SITUATIONS[index]
    setting = Setting(hosts, steps, 1, "mild", "lognormal", seed)
    clocks = situation.clocks(setting)
    if situation.at_servers:
        recording = requests(setting, clocks, STEP_MS)
        enter = np.full((steps, hosts), ORIGIN_NS)
    else:
        recording, enter = _record(setting, situation, clocks)
    aligned = align(recording.trace())
    found = aligned.events.collect()["start_ns"].to_numpy()
    host = recording.events["process"].to_numpy()
    wrong = np.abs(found - clocks[0].shows(recording.events["start_ns"].to_numpy()))
    p99 = np.array([np.quantile(wrong[host == one], 0.99) for one in range(hosts)])
    stated = np.array([clock.uncertainty_ns for clock in aligned.alignment.hosts])
    shown_ns = np.stack([clocks[one].shows(enter[:, one]) for one in range(hosts)], axis=1)
    return {
        "situation": situation.name,
        "p99_us": float(np.quantile(wrong, 0.99)) / 1e3,
        "median_us": float(np.median(wrong)) / 1e3,
        "worst_us": float(wrong.max()) / 1e3,
        "stated_us": float(stated.max()) / 1e3,
        "covered": float(np.mean(p99 <= stated)),
        "jump_steps": _jump_error(aligned.alignment.hosts[_SLOW % hosts].jumps, clocks),
        "blamed_raw": situation.late_ms > 0 and _SLOW % hosts in hta(Seen({}, shown_ns)),
        "blamed_aligned": situation.late_ms > 0 and _blamed(aligned.events.collect(), steps, hosts),
    }


def _record(
    setting: Setting, situation: Situation, clocks: list[HostClock]
) -> tuple[Recording, Times]:
    """Return the recording and the true arrivals at the first collective of each step."""
    hosts, steps = setting.hosts, setting.steps
    draw = setting.stream("collectives")
    shape = (steps, CALLS, hosts)
    spacing = STEP_MS * MS / CALLS
    due = ORIGIN_NS + (np.arange(steps * CALLS).reshape(steps, CALLS, 1) * spacing).astype(np.int64)
    enter = due + (draw.exponential(0.01 * spacing, shape)).astype(np.int64)
    enter[..., _SLOW % hosts] += int(situation.late_ms / CALLS * MS)
    lag = draw.lognormal(np.log(LAG_NS), 0.5, shape)
    if situation.lag_by_host:
        lag += draw.uniform(0, 45_000, hosts)
    together = enter.max(axis=2, keepdims=True) + 200_000
    alone = draw.random((steps, CALLS, 1)) < situation.loose
    leave = np.where(alone, enter + 20_000, together) + lag.astype(np.int64)
    return _recording(setting, clocks, enter, leave), enter[:, 0]


def _recording(setting: Setting, clocks: list[HostClock], enter: Times, leave: Times) -> Recording:
    ledger = Ledger()
    hosts, steps = setting.hosts, setting.steps
    rank, step = np.arange(hosts), np.arange(steps)[:, None]
    columns = {"process": rank, "rank": rank, "step": step}
    start = np.concatenate([enter[:1, 0] - 1_000_000, leave[:-1, -1]])
    ledger.note(What("step", "step", depth=0), start, leave[:, -1], columns)
    reduction = What("reduction", "allreduce", "allreduce", communicator=WORLD)
    for call in range(CALLS):
        ledger.note(
            reduction,
            enter[:, call],
            leave[:, call],
            columns,
            seq=step * CALLS + call,
            bytes=1 << 20,
        )
    members = tuple(Member("worker", one, one) for one in range(hosts))
    return Recording(ledger.frame(), members, tuple(clocks), (tuple(range(hosts)),))


def _jump_error(jumps: tuple[int, ...], clocks: list[HostClock]) -> float | None:
    """Return by how many steps a jump is located wrongly; null without a jump, infinite if not found."""
    clock = clocks[_SLOW % len(clocks)]
    if not clock.jump_ns:
        return None
    true = clocks[0].shows(np.array([clock.jump_at_ns]))[0]
    return min((abs(float(at - true)) / (STEP_MS * MS) for at in jumps), default=float("inf"))


def _blamed(events: pl.DataFrame, steps: int, hosts: int) -> bool:
    """Say whether the rule of latest arrival names the late rank once clocks are aligned."""
    first = events.filter((pl.col("kind") == "reduction") & (pl.col("seq") % CALLS == 0))
    enter = first.sort("step", "rank")["start_ns"].to_numpy().reshape(steps, hosts)
    return _SLOW % hosts in hta(Seen({}, enter))


def gather_rows(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a situation."""
    rows = []
    for situation in SITUATIONS:
        runs = [row for row in outcomes if row["situation"] == situation.name]
        if runs:
            rows.append(_row(situation, runs))
    return rows


def _row(situation: Situation, runs: list[dict[str, Any]]) -> dict[str, Any]:
    worst_values = {
        name: round(max(run[name] for run in runs), 3)
        for name in ("p99_us", "worst_us", "stated_us")
    }
    jumps = [run["jump_steps"] for run in runs if run["jump_steps"] is not None]
    late = situation.late_ms > 0
    return {
        "situation": situation.name,
        "runs": len(runs),
        "median_us": round(float(np.median([run["median_us"] for run in runs])), 3),
        **worst_values,
        "target_us": situation.target_us,
        "covered": round(float(np.mean([run["covered"] for run in runs])), 4),
        "jump_steps": round(max(jumps), 3) if jumps else None,
        "blamed_raw": round(float(np.mean([run["blamed_raw"] for run in runs])), 3)
        if late
        else None,
        "blamed_aligned": round(float(np.mean([run["blamed_aligned"] for run in runs])), 3)
        if late
        else None,
    }
