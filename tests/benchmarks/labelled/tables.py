"""False alarms and recall on tables of own time: no events, so thousands of runs can be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from benchmarks.labelled.intervals import exact
from benchmarks.labelled.judged import Verdict, verdicts
from benchmarks.labelled.label import Label, Seen
from benchmarks.labelled.noise import Strength, vary
from benchmarks.labelled.peers import PEERS
from benchmarks.labelled.score import of_peers
from benchmarks.labelled.setting import (
    FAMILIES,
    FIRST_SEED,
    LEVELS,
    PER_HOST,
    TUNED_FAMILY,
    Setting,
)
from benchmarks.labelled.work import MEANS_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.labelled.setting import Family, Floats, Level, Times

Task = tuple[int, "Level", "Family", float, int]  # ranks, noise, slowdown, seed
STEPS: Final = 1000
PLANTED: Final = 0.4  # of the steps
SLOWDOWNS: Final = (0.03, 0.05, 0.10, 0.30)
# The noise that the targets for recall are set for.
REFERENCE: Final = Strength(0.03, memory=0.6, often=0.002, spike=0.1)


def tasks(runs: Mapping[int, tuple[int, int]], seeds: str) -> list[Task]:
    """Return all tables: by size, how many healthy runs a noise, and how many a slowdown."""
    families, first_seed = FAMILIES[seeds], FIRST_SEED[seeds]
    healthy: list[Task] = [
        (ranks, level, family, 0.0, first_seed + run)
        for run in range(max(count for count, _ in runs.values()))
        for ranks, (count, _) in sorted(runs.items(), reverse=True)
        for level in LEVELS
        for family in families
        if run < count
    ]
    slowed: list[Task] = [
        (ranks, "mild", family, slowdown, first_seed + run)
        for run in range(max(count for _, count in runs.values()))
        for ranks, (_, count) in sorted(runs.items(), reverse=True)
        for family in families
        for slowdown in SLOWDOWNS
        if run < count
    ]
    return slowed + healthy


def perform(task: Task) -> dict[str, Any]:
    """Draw a table, slow one rank for a while if so asked, and judge it."""
    ranks, level, family, slowdown, seed = task
    setting = Setting(ranks, STEPS, PER_HOST[ranks], level, family, seed)
    phases = vary(setting, MEANS_MS, REFERENCE if slowdown and family == TUNED_FAMILY else None)
    total_before = _steps(phases).sum()
    rank, first_step = _slow_down(setting, phases, slowdown)
    steps = _steps(phases)
    findings = verdicts(phases, setting.per_host)
    right = [one for one in findings if slowdown and one.ranks == (rank,)]
    label = Label("straggler", ranks=(rank,)) if slowdown else Label()
    place = {"ranks": ranks, "level": level, "family": family, "slowdown": slowdown}
    out = place | {
        "found": bool(right),
        "named": len(findings),
        "false": len(findings) - len(right),
        "peers": of_peers(Seen(phases, _arrivals(phases, steps)), label),
    }
    return out | (
        _numbers(right, first_step, float(1 - total_before / steps.sum())) if right else {}
    )


def _slow_down(setting: Setting, phases: Mapping[str, Floats], slowdown: float) -> tuple[int, int]:
    """Make everything that one rank does last longer for a while: who, and from which step."""
    draw = setting.stream("planted")
    rank, length = int(draw.integers(setting.ranks)), int(PLANTED * STEPS)
    first_step = int(draw.integers(20, STEPS - length + 1))
    for values in phases.values():
        values[first_step : first_step + length, rank] *= 1 + slowdown
    return rank, first_step


def _steps(phases: Mapping[str, Floats]) -> Floats:
    """Return how long each step takes if ranks meet in it: as long as the slowest."""
    return np.asarray(np.sum([*phases.values()], axis=0).max(axis=1))


def _arrivals(phases: Mapping[str, Floats], steps: Floats) -> Times:
    """Return when ranks meet the others, nanoseconds."""
    begin = np.concatenate([[0.0], np.cumsum(steps)[:-1]])
    own = np.sum([*phases.values()], axis=0)
    return np.asarray(np.rint((begin[:, None] + own) * 1e6), np.int64)


def _numbers(right: list[Verdict], first: int, truth: float) -> dict[str, Any]:
    low, high = right[0].interval
    return {
        "onset": min(abs(one.steps[0] - first) for one in right),
        "saving": sum(one.saving for one in right),
        "truth": truth,
        "covered": low <= truth <= high,
    }


def healthy(outcomes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return false alarms: one row a size and noise."""
    cells: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for row in outcomes:
        if not row["slowdown"]:
            cells.setdefault((row["ranks"], row["level"], row["family"]), []).append(row)
    return [_alarms(cells[key]) for key in sorted(cells)]


def _alarms(rows: list[dict[str, Any]]) -> dict[str, Any]:
    alarms = sum(row["named"] > 0 for row in rows)
    low, high = exact(alarms, len(rows))
    same = {name: rows[0][name] for name in ("ranks", "level", "family")}
    return same | {
        "steps": STEPS,
        "runs": len(rows),
        "alarms": alarms,
        "share": round(alarms / len(rows), 5),
        "interval": [round(low, 5), round(high, 5)],
        "peers": {
            name: round(float(np.mean([row["peers"][name]["false"] > 0 for row in rows])), 4)
            for name in PEERS
        },
    }


def recall(outcomes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how many slowed ranks are found: one row a size, noise and slowdown."""
    cells: dict[tuple[int, str, float], list[dict[str, Any]]] = {}
    for row in outcomes:
        if row["slowdown"]:
            cells.setdefault((row["ranks"], row["family"], row["slowdown"]), []).append(row)
    return [_recall(cells[key]) for key in sorted(cells)]


def _recall(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found_count = sum(row["found"] for row in rows)
    low, high = exact(found_count, len(rows))
    named_count, false = sum(row["named"] for row in rows), sum(row["false"] for row in rows)
    same = {name: rows[0][name] for name in ("ranks", "family", "slowdown")}
    hits = [row for row in rows if row["found"]]
    return same | {
        "runs": len(rows),
        "recall": round(found_count / len(rows), 4),
        "interval": [round(low, 4), round(high, 4)],
        "precision": round(1 - false / named_count, 4) if named_count else None,
        "onset_p90_steps": round(float(np.quantile([row["onset"] for row in hits], 0.9)), 1)
        if hits
        else None,
        "saving_error_points": _points(hits),
        "saving_truth": round(float(np.mean([row["truth"] for row in hits])), 5) if hits else None,
        "interval_covers": round(float(np.mean([row["covered"] for row in hits])), 4)
        if hits
        else None,
        "peers": {name: _peer(rows, name) for name in PEERS},
    }


def _points(hits: list[dict[str, Any]]) -> float | None:
    """Return the usual error of the saving, as a share of the job."""
    if not hits:
        return None
    return round(float(np.median([abs(row["saving"] - row["truth"]) for row in hits])), 6)


def _peer(rows: list[dict[str, Any]], name: str) -> dict[str, float | None]:
    peer_rows = [row["peers"][name] for row in rows]
    named_count, false = (
        sum(one["named"] for one in peer_rows),
        sum(one["false"] for one in peer_rows),
    )
    return {
        "recall": round(float(np.mean([one["found"] for one in peer_rows])), 4),
        "precision": round(1 - false / named_count, 4) if named_count else None,
    }
