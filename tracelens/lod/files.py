"""A `Run` as files: arrays that are mapped, tables as Arrow, and the rest as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.lod import lateness, verdict
from tracelens.lod.lanes import Lane, Lanes
from tracelens.lod.levels import Bins
from tracelens.lod.pyramid import COLOURS, PEAKS, Pyramid, file_of
from tracelens.lod.query import Scene
from tracelens.lod.run import Run
from tracelens.lod.times import Times
from tracelens.lod.window import Window
from tracelens.transforms.clock import ClockMap

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracelens.trace import Moved

TABLES: Final = ("workers", "shards", "streams", "windows", "loads", "traffic")
COLUMNS: Final = ("offsets", "starts", "ends", "codes", "steps", "names")
_MOVED: Final = "clocks.json"
_FACTS: Final = "run.json"
_REPORT: Final = "report.json"


def save(run: Run, ladder: list[Bins], folder: Path) -> None:
    """Write everything but the levels of colours into an empty folder."""
    scene, times = run.scene, run.times
    assert scene.peaks
    for rung in scene.peaks.ladder:
        np.save(file_of(folder, PEAKS, rung), scene.peaks.found[rung.shift])
    for name in TABLES:
        getattr(run, name).write_ipc(folder / f"{name}.arrow")
    verdict.save(run.report, folder / _REPORT)
    _save_lanes(scene.lanes, folder, "spans")
    _save_lanes(scene.steps, folder, "steps")
    np.save(folder / "times.npy", times.ns)
    np.save(folder / "there.npy", times.there)
    facts = {
        "name": run.name,
        "whole": [scene.whole.start_ns, scene.whole.end_ns],
        "step_ns": scene.step_ns,
        "lanes": [[lane.process, lane.role, lane.rank, lane.part] for lane in scene.lanes.lanes],
        "words": {"spans": scene.lanes.words, "steps": scene.steps.words},
        "ladders": {
            COLOURS: [asdict(rung) for rung in ladder],
            PEAKS: [asdict(rung) for rung in scene.peaks.ladder],
        },
        "times": {
            "ranks": times.ranks,
            "steps": times.steps,
            "categories": times.categories,
            "usual_ns": times.usual_ns,
        },
    }
    (folder / _MOVED).write_text(json.dumps(_moved(run.moved)))
    (folder / _FACTS).write_text(json.dumps(facts))


def load(folder: Path) -> Run:
    """Open what `save` wrote; arrays are mapped, not read."""
    facts = json.loads((folder / _FACTS).read_text())
    lanes = tuple(Lane(*row) for row in facts["lanes"])
    scene = Scene(
        lanes=_load_lanes(folder, "spans", lanes, facts["words"]),
        steps=_load_lanes(folder, "steps", lanes, facts["words"]),
        whole=Window(*facts["whole"]),
        step_ns=facts["step_ns"],
        peaks=_pyramid(PEAKS, folder, facts),
        pyramid=_pyramid(COLOURS, folder, facts),
    )
    times = _load_times(folder, facts["times"])
    return Run(
        name=facts["name"],
        report=verdict.load(folder / _REPORT),
        times=times,
        lateness=lateness.measure(times),
        scene=scene,
        moved=_load_moved(folder),
        **{name: pl.read_ipc(folder / f"{name}.arrow") for name in TABLES},
    )


def _moved(moved: Mapping[int, Moved]) -> dict[str, Any]:
    """Describe how processes' times were moved; many share a clock."""
    maps = {id(found): found for found in moved.values() if isinstance(found, ClockMap)}
    place = {key: index for index, key in enumerate(maps)}
    rows = [found.row for found in maps.values()]
    return {"clocks": rows, "processes": [[p, place[id(found)]] for p, found in moved.items()]}


def _load_moved(folder: Path) -> dict[int, Moved]:
    facts = json.loads((folder / _MOVED).read_text())
    maps = [ClockMap.of(row) for row in facts["clocks"]]
    return {process: maps[clock] for process, clock in facts["processes"]}


def _pyramid(kind: str, folder: Path, facts: dict[str, Any]) -> Pyramid:
    return Pyramid(kind, tuple(Bins(**rung) for rung in facts["ladders"][kind]), folder)


def _save_lanes(lanes: Lanes, folder: Path, what: str) -> None:
    for name in COLUMNS:
        np.save(folder / f"{what}-{name}.npy", getattr(lanes, name))


def _load_lanes(
    folder: Path, what: str, lanes: tuple[Lane, ...], words: dict[str, list[str]]
) -> Lanes:
    mapped = {name: _mapped(folder / f"{what}-{name}.npy") for name in COLUMNS}
    return Lanes(lanes=lanes, words=tuple(words[what]), **mapped)


def _load_times(folder: Path, facts: dict[str, Any]) -> Times:
    ns, there = _mapped(folder / "times.npy"), _mapped(folder / "there.npy")
    ranks, steps, categories = (tuple(facts[name]) for name in ("ranks", "steps", "categories"))
    return Times(ranks, steps, categories, ns, there, facts["usual_ns"])


def _mapped(file: Path) -> np.ndarray[Any, Any]:
    """Map an array; as a plain one, which is quicker to slice."""
    return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
