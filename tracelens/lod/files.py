"""A `Run` as files: arrays that are mapped, tables as Arrow, and the rest as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.lod import columns, glance, lateness, tables, verdict
from tracelens.lod.columns import mapped
from tracelens.lod.lanes import Lane
from tracelens.lod.levels import Bins
from tracelens.lod.pyramid import COLOURS, PEAKS, Pyramid, file_of, ladder_of
from tracelens.lod.query import Scene
from tracelens.lod.run import Run
from tracelens.lod.times import Times
from tracelens.lod.window import Window
from tracelens.schema.light_json import loads
from tracelens.transforms.clock import ClockMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tracelens.lod.columns import Tell
    from tracelens.lod.lanes import Lanes
    from tracelens.trace import Moved

TABLES: Final = ("workers", "shards", "threads", "windows", "loads", "traffic")
_MOVED: Final = "clocks.json"
_CALLS: Final = "calls.arrow"
_FACTS: Final = "run.json"
_REPORT: Final = "report.json"


def save(run: Run, parts: Iterable[Lanes], folder: Path, tell: Tell) -> None:
    """Write everything but the levels of colours into an empty folder.

    The spans come part by part, in the order of the run's lanes, which need not hold them.
    """
    scene, times = run.scene, run.times
    assert scene.peaks
    for rung in scene.peaks.ladder:
        np.save(file_of(folder, PEAKS, rung), scene.peaks.found[rung.width_ns])
    for name in TABLES:
        getattr(run, name).write_ipc(folder / f"{name}.arrow")
    for name, table in run.tables.items():
        table.write_ipc(_table(folder, name))
    verdict.save(run.report, folder / _REPORT)
    glance.save(run, folder)
    offsets, words = columns.save(parts, folder, "spans", len(scene.lanes), tell)
    columns.save([scene.steps], folder, "steps", len(scene.lanes))
    ladder = ladder_of(offsets, scene.whole)
    np.save(folder / "times.npy", times.ns)
    np.save(folder / "there.npy", times.there)
    facts = {
        "name": run.name,
        "whole": [scene.whole.start_ns, scene.whole.end_ns],
        "step_ns": scene.step_ns,
        "lanes": [[lane.process, lane.role, lane.rank, lane.part] for lane in scene.lanes.lanes],
        "words": {"spans": words, "steps": scene.steps.words},
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
    run.calls.sort("communicator", "seq").collect().write_ipc(folder / _CALLS)
    (folder / _MOVED).write_text(json.dumps(_moved(run.moved)))
    (folder / _FACTS).write_text(json.dumps(facts))


def load(folder: Path) -> Run:
    """Open what `save` wrote; arrays are mapped, not read.

    Raises:
        OSError: it lacks something, such as a table that pages have come to need since.
    """
    facts = loads((folder / _FACTS).read_text())
    lanes = tuple(Lane(*row) for row in facts["lanes"])
    scene = Scene(
        lanes=columns.load(folder, "spans", lanes, facts["words"]["spans"]),
        steps=columns.load(folder, "steps", lanes, facts["words"]["steps"]),
        whole=Window(*facts["whole"]),
        step_ns=facts["step_ns"],
        peaks=_pyramid(PEAKS, folder, facts),
        pyramid=_pyramid(COLOURS, folder, facts),
    )
    times = _load_times(folder, facts["times"])
    return Run(
        name=facts["name"],
        report=verdict.load(folder / _REPORT),
        tables={name: pl.read_ipc(_table(folder, name)) for name in tables.KEPT},
        times=times,
        lateness=lateness.measure(times),
        scene=scene,
        moved=_load_moved(folder),
        calls=pl.scan_ipc(folder / _CALLS),
        **{name: pl.read_ipc(folder / f"{name}.arrow") for name in TABLES},
    )


def _table(folder: Path, name: str) -> Path:
    return folder / f"table-{name}.arrow"


def _moved(moved: Mapping[int, Moved]) -> dict[str, Any]:
    """Describe how processes' times were moved; many share a clock."""
    maps = {id(found): found for found in moved.values() if isinstance(found, ClockMap)}
    place = {key: index for index, key in enumerate(maps)}
    rows = [found.row for found in maps.values()]
    return {"clocks": rows, "processes": [[p, place[id(found)]] for p, found in moved.items()]}


def _load_moved(folder: Path) -> dict[int, Moved]:
    facts = loads((folder / _MOVED).read_text())
    maps = [ClockMap.of(row) for row in facts["clocks"]]
    return {process: maps[clock] for process, clock in facts["processes"]}


def _pyramid(kind: str, folder: Path, facts: dict[str, Any]) -> Pyramid:
    return Pyramid(kind, tuple(Bins(**rung) for rung in facts["ladders"][kind]), folder)


def _load_times(folder: Path, facts: dict[str, Any]) -> Times:
    ns, there = mapped(folder / "times.npy"), mapped(folder / "there.npy")
    ranks, steps, categories = (tuple(facts[name]) for name in ("ranks", "steps", "categories"))
    return Times(ranks, steps, categories, ns, there, facts["usual_ns"])
