"""Many runs of one scenario, simulated and measured: every combination of some values.

Nothing of a run stays but its numbers, so that hundreds fit into memory; on several cores they are made
side by side.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import InvalidArgument
from tracelens.parallel import map_in_order
from tracelens.scaling.points import FACTORS, Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from tracelens.simulator.scenario import Scenario

MAX_CELLS_OF_SWEEP: Final = 4096  # combinations: no more are simulated [policy]
_SHORT: Final = {"workers": "run.workers", "ps": "servers.shards", "shards": "servers.shards"}
_BATCH: Final = "batch"  # samples of a worker in a step: what it computes grows with them
_TIMES_OF_BATCH: Final = ("data_ms", "forward_ms", "backprop_ms")


@dataclass(frozen=True)
class Axis:
    """What is varied: its name as it was given, and its values as they were written."""

    name: str
    value_texts: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """A run of a sweep: the value of each axis, and what was measured.

    `samples_per_s` is of all workers; `efficiency` and the factors of it are shares of 1.
    """

    axis_values: tuple[str, ...]
    worker_count: int
    shard_count: int
    step_ns: float
    samples_per_s: float
    efficiency: float
    share_by_factor: dict[str, float]

    def make_row(self, axes: Sequence[Axis]) -> dict[str, Any]:
        """Return a row of a table: the axes' values, as numbers if possible, and measurements."""
        axis_values: dict[str, Any] = {
            axis.name: _parse_value(value)
            for axis, value in zip(axes, self.axis_values, strict=True)
        }
        measurements = {
            "workers": self.worker_count,
            "shards": self.shard_count,
            "step_ns": self.step_ns,
            "throughput": self.samples_per_s,
            "efficiency": self.efficiency,
            **self.share_by_factor,
        }
        return axis_values | {
            name: value for name, value in measurements.items() if name not in axis_values
        }


def parse_axis(text: str) -> Axis:
    """Read ``workers=2,4,8``: a short name, ``batch``, or TABLE.NAME of a scenario.

    Raises:
        InvalidArgument: the text is no such axis.
    """
    name, _, values_text = text.partition("=")
    name = name.strip()
    axis_values = tuple(
        dict.fromkeys(value.strip() for value in values_text.split(",") if value.strip())
    )
    if not axis_values or not (name in (*_SHORT, _BATCH) or "." in name):
        raise InvalidArgument(
            f"--over {text}: expected NAME=VALUE,VALUE... of {', '.join((*_SHORT, _BATCH))}, or of "
            "an entry of a scenario, such as network.latency_us=5,50."
        )
    return Axis(name, axis_values)


def make_scenarios(
    path: Path, axes: Sequence[Axis], changes: Sequence[str] = ()
) -> list[tuple[tuple[str, ...], Scenario]]:
    """Return the values and the scenario of every combination, the last axis fastest; checked.

    Raises:
        InvalidArgument: one cannot be simulated, they are too many, or an axis is given twice.
    """
    from tracelens.simulator import scenario_file  # noqa: PLC0415 - whoever measures runs needs none

    names = [_SHORT.get(axis.name, axis.name) for axis in axes]
    if len(set(names)) < len(names):
        raise InvalidArgument(
            f"--over names {max(names, key=names.count)} twice: expected it once."
        )
    count = prod(len(axis.value_texts) for axis in axes)
    if count > MAX_CELLS_OF_SWEEP:
        raise InvalidArgument(
            f"Found {count:,} combinations: expected at most {MAX_CELLS_OF_SWEEP:,}."
        )
    cells = []
    for values in product(*(axis.value_texts for axis in axes)):
        values_by_name = list(zip(names, values, strict=True))
        value_changes = [f"{name}={value}" for name, value in values_by_name if name != _BATCH]
        try:
            scenario = scenario_file.load(path, [*changes, *value_changes])
            for name, value in values_by_name:
                scenario = _set_batch(scenario, value) if name == _BATCH else scenario
        except InvalidArgument as error:
            raise InvalidArgument(
                f"With {', '.join(map('='.join, values_by_name))}: {error}"
            ) from None
        cells.append((values, scenario))
    return cells


def _set_batch(scenario: Scenario, text: str) -> Scenario:
    """Return a scenario with other samples of a worker in a step (a text), and so its compute."""
    samples = _parse_value(text)
    if not isinstance(samples, (int, float)) or not 0 < samples < 1e9:
        raise InvalidArgument(f"found batch = '{text}', expected a number of samples above 0.")
    sample_ratio = samples / scenario.samples
    times_ms = {name: getattr(scenario, name) * sample_ratio for name in _TIMES_OF_BATCH}
    return replace(scenario, samples=float(samples), **times_ms)


def measure_cells(
    cells: Sequence[tuple[tuple[str, ...], Scenario]], executor: Executor | None = None
) -> Iterator[Cell]:
    """Simulate and measure runs, given by values and scenario, in order; `executor` says where."""
    return map_in_order(_measure_cell, cells, executor)


def _measure_cell(cell: tuple[tuple[str, ...], Scenario]) -> Cell:
    """Simulate and analyze a run, given by its values and its scenario."""
    from tracelens.load import prepare  # noqa: PLC0415
    from tracelens.simulator import synthetic  # noqa: PLC0415
    from tracelens.verdicts.report import analyze  # noqa: PLC0415 - a process of an executor imports what it needs

    values, scenario = cell
    trace = prepare(synthetic.generate(scenario))
    point = Point.from_trace(trace, analyze(trace), ", ".join(values))
    samples_per_step = scenario.samples * point.worker_count
    return Cell(
        axis_values=values,
        worker_count=point.worker_count,
        shard_count=point.shard_count,
        step_ns=point.step_ns,
        samples_per_s=samples_per_step / point.step_ns * 1e9,
        efficiency=point.efficiency,
        share_by_factor={name: point.share_by_factor[name] for name in FACTORS},
    )


def _parse_value(text: str) -> Any:
    """Return a value as TOML reads it; what it does not read is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
