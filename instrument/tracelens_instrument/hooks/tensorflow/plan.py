"""The coordinator's plan for servers and workers: which tensors are exchanged, when to profile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "AHEAD_S",
    "WINDOW_S",
    "WINDOW_VARIABLE",
    "Plan",
    "Transfer",
    "has_plan",
    "read_plan",
    "write_plan",
]

WINDOW_VARIABLE: Final = "TRACELENS_TENSORFLOW_S"
WINDOW_S: Final = 2.0
AHEAD_S: Final = 1.0
_FILE: Final = ".tensorflow.json"  # names that begin with a dot are no recordings
_SERVER: Final = re.compile(r"/job:ps/.*task:(\d+)")
_READ: Final = "ReadVariableOp"
_UPDATES: Final = re.compile(
    r"Assign(Add|Sub)?VariableOp|ResourceApply\w+|ResourceScatter\w+|ResourceSparseApply\w+"
)


@dataclass(frozen=True)
class Transfer:
    """A tensor that is pulled from a variable's server, or pushed there to update it."""

    variable: str
    shard: int
    nbytes: int
    update: str = ""  # the operation that takes it in


@dataclass(frozen=True)
class Plan:
    """Transfers by the name of the tensor's operation, and the window of wall-clock time, ns."""

    pulls: dict[str, Transfer]
    pushes: dict[str, Transfer]
    begin_ns: int
    end_ns: int

    @classmethod
    def of(cls, graphs: Iterable[Any]) -> Self:
        """Find reads and updates of variables that are placed on parameter servers."""
        pulls: dict[str, Transfer] = {}
        pushes: dict[str, Transfer] = {}
        for graph in graphs:
            where = _variables(graph)
            for operation in graph.get_operations():
                place = where.get(_resource(operation))
                if place is None:
                    continue
                if operation.type == _READ:
                    size = _size(operation.outputs[0])
                    pulls[operation.name] = Transfer(*place, size)
                elif _UPDATES.fullmatch(operation.type):
                    for tensor in operation.inputs[1:]:
                        pushes[tensor.op.name] = Transfer(*place, _size(tensor), operation.name)
        begin = time.time_ns() + round(AHEAD_S * 1e9)
        return cls(pulls, pushes, begin, begin + round(_window_s() * 1e9))

    @property
    def variables(self) -> set[str]:
        """The names of all variables."""
        return {transfer.variable for transfer in (*self.pulls.values(), *self.pushes.values())}


def has_plan(directory: Path) -> bool:
    """Return whether a plan has been written."""
    return (directory / _FILE).exists()


def write_plan(directory: Path, plan: Plan) -> None:
    """Write it, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f"{_FILE}.{os.getpid()}"
    unfinished.write_text(json.dumps(asdict(plan)))
    unfinished.replace(directory / _FILE)


def read_plan(directory: Path) -> Plan | None:
    """Return the plan, as soon as there is one that is still to come."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        raw = json.loads((directory / _FILE).read_text())
        for which in ("pulls", "pushes"):
            raw[which] = {name: Transfer(**values) for name, values in raw[which].items()}
        plan = Plan(**raw)
        return plan if plan.end_ns > time.time_ns() else None
    return None


def _variables(graph: Any) -> dict[str, tuple[str, int]]:
    """Return (variable, shard) by the name of the placeholder through which a graph sees it."""
    names = {id(variable.handle): variable.name for variable in graph.variables}
    found = {}
    for outside, inside in graph.captures:
        server = _SERVER.search(getattr(outside, "device", None) or "")
        if server and id(outside) in names:
            found[inside.op.name] = (names[id(outside)].partition(":")[0], int(server[1]))
    return found


def _resource(operation: Any) -> str:
    inputs = operation.inputs
    return inputs[0].op.name if len(inputs) else ""


def _size(tensor: Any) -> int:
    elements = tensor.shape.num_elements()
    return 0 if elements is None else elements * int(tensor.dtype.size)


def _window_s() -> float:
    with contextlib.suppress(ValueError):
        return float(os.environ.get(WINDOW_VARIABLE, WINDOW_S))
    return WINDOW_S
