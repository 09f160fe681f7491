"""Runs every kind of run from recorded events to the report, and counts what was right."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from benchmarks.labelled.intervals import exact
from benchmarks.labelled.kinds import KINDS
from benchmarks.labelled.peers import PEERS
from benchmarks.labelled.score import HALF_A_POINT, of_peers, outcome
from benchmarks.labelled.setting import FAMILIES, FIRST_SEED, LEVELS, setting

from tracelens import load
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.labelled.label import Case
    from benchmarks.labelled.setting import Family, Level

    from tracelens.model.result import Report

Task = tuple[int, int, "Level", "Family", int]
_CUT_TO: Final = 0.6  # of a damaged file
_QUANTILES: Final = {"median": 0.5, "p90": 0.9}


def tasks(
    runs: Mapping[int, int], seeds: str, only: str = "", *, quick: bool = False
) -> list[Task]:
    """Return all runs, so many by size: of each kind and level, half with each family of noise.

    All cells get their first run before any gets its second: a run of the bench may be cut short.
    `only` keeps the kinds whose names hold it; a `quick` bench has each kind at one level, in turns.
    """
    families, first_seed = FAMILIES[seeds], FIRST_SEED[seeds]
    kinds = [index for index, kind in enumerate(KINDS) if only in kind.name]
    return [
        (kind, size, level, families[run % len(families)], first_seed + run)
        for run in range(max(runs.values()))
        for size, count in sorted(runs.items(), reverse=True)
        for kind in kinds
        for level in ((LEVELS[kind % len(LEVELS)],) if quick else LEVELS)
        if run < count
    ]


def perform(task: Task) -> dict[str, Any]:
    """Make one run, analyze it, and hold the report against the truth."""
    kind, ranks, level, family, seed = task
    case = KINDS[kind].make(setting(ranks, level, family, seed))
    scored = outcome(report(case).findings, case.label)
    peers = of_peers(case.seen, case.label) if case.seen else None
    labelled = {"verdict": case.label.verdict, "of_ranks": bool(case.label.ranks)}
    place = {"kind": KINDS[kind].name, "ranks": ranks, "level": level, "family": family}
    return place | {"seed": seed, "peers": peers} | labelled | scored


def report(case: Case) -> Report:
    """Analyze a run, through files where the files are the matter."""
    if not case.through_files:
        return analyze(load.prepare(case.recording.trace()))
    with tempfile.TemporaryDirectory() as folder:
        run_folder = Path(folder) / "trace"
        case.recording.write(run_folder)
        if case.damaged is not None:
            file = sorted(run_folder.iterdir())[case.damaged]
            content = file.read_bytes()
            file.write_bytes(content[: int(len(content) * _CUT_TO)])
        return analyze(load.open(run_folder))


def gather_rows(outcomes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a kind, size and level."""
    cells: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    kinds = {kind.name: index for index, kind in enumerate(KINDS)}
    levels = {str(level): index for index, level in enumerate(LEVELS)}
    for row in outcomes:
        key = (kinds[row["kind"]], row["ranks"], levels[row["level"]])
        cells.setdefault(key, []).append(row)
    return [_cell(cells[key]) for key in sorted(cells)]


def _cell(rows: list[dict[str, Any]]) -> dict[str, Any]:
    right = sum(row["right"] for row in rows)
    low, high = exact(right, len(rows))
    verdict_counts = Counter(row["said"] for row in rows)
    same = {name: rows[0][name] for name in ("kind", "ranks", "level", "verdict")}
    return same | {
        "runs": len(rows),
        "right": right / len(rows),
        "interval": [round(low, 4), round(high, 4)],
        "found": _mean(rows, "found"),
        "wrong_blame": _mean(rows, "wrong_blame"),
        "by_family": _by_family(rows),
        "said": dict(verdict_counts.most_common()),
        "phase": _mean(rows, "phase"),
        "pattern": _mean(rows, "pattern"),
        "onset_steps": _quantiles([abs(row["onset"]) for row in rows if "onset" in row]),
        "saving_error": _quantiles(
            [_error(row) for row in rows if row.get("truth", 0.0) >= HALF_A_POINT]
        ),
        "saving_right": _mean(rows, "saving_right"),
        "saving_truth": _quantiles([row["truth"] for row in rows if "saving" in row]),
        "interval_covers": _mean(rows, "covered"),
        "peers": _peers(rows),
    }


def _by_family(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    families = sorted({row["family"] for row in rows})
    return {
        name: _mean([row for row in rows if row["family"] == name], "right") for name in families
    }


def _error(row: dict[str, Any]) -> float:
    """Return by what share of the truth a saving is wrong."""
    saving, truth = float(row["saving"]), float(row["truth"])
    return abs(saving - truth) / truth


def _mean(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return round(float(np.mean(values)), 4) if values else None


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {name: round(float(np.quantile(values, at)), 5) for name, at in _QUANTILES.items()}


def _peers(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]] | None:
    peer_rows = [row["peers"] for row in rows if row["peers"]]
    if not peer_rows:
        return None
    return {
        name: {
            "found": round(float(np.mean([row[name]["found"] for row in peer_rows])), 4),
            "false": round(float(np.mean([row[name]["false"] > 0 for row in peer_rows])), 4),
        }
        for name in PEERS
    }
