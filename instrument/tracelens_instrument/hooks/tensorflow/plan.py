"""The coordinator's plan for servers and workers: which tensors are exchanged, when to profile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "AHEAD_S",
    "SERVER",
    "UPDATES",
    "WINDOW_S",
    "WINDOW_VARIABLE",
    "Plan",
    "Transfer",
    "has_plan",
    "read_plan",
    "size_of",
    "write_plan",
]

WINDOW_VARIABLE: Final = "TRACELENS_TENSORFLOW_S"
WINDOW_S: Final = 2.0
AHEAD_S: Final = 1.0
_FILE: Final = ".tensorflow.json"  # names that begin with a dot are no recordings
SERVER: Final = re.compile(r"/job:ps/.*task:(\d+)")
_READ: Final = "ReadVariableOp"
UPDATES: Final = re.compile(
    r"Assign(Add|Sub)?VariableOp|Assign(Add|Sub)|(Resource)?(Sparse)?Apply\w+|(Resource)?Scatter\w+"
)


@dataclass(frozen=True)
class Transfer:
    """A tensor that is pulled from a variable's server, or pushed there to update it."""

    variable: str
    shard: int
    nbytes: int | None  # None: it is as large as its batch wants it
    update: str = ""  # the operation that takes it in
    served: str = "apply"  # what that does: apply it, or aggregate it


@dataclass(frozen=True)
class Plan:
    """Transfers by the name of the tensor's operation, and the window to profile, wall-clock ns.

    Of sessions also the updates that servers make by themselves, by operation, and the operations that
    hand out tokens to workers that are in step.
    """

    pulls: dict[str, Transfer]
    pushes: dict[str, Transfer]
    begin_ns: int
    end_ns: int
    applied: dict[str, Transfer] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)

    @classmethod
    def from_graphs(cls, graphs: Iterable[Any]) -> Self:
        """Return the plan of all reads and updates of variables that are on parameter servers."""
        pulls: dict[str, Transfer] = {}  # by operation, as are the pushes
        pushes: dict[str, Transfer] = {}
        for graph in graphs:
            variables = _find_variables(graph)
            for operation in graph.get_operations():
                variable_and_shard = variables.get(_first_input_name(operation))
                if variable_and_shard is None:
                    continue
                if operation.type == _READ:
                    nbytes = size_of(operation.outputs[0])
                    pulls[operation.name] = Transfer(*variable_and_shard, nbytes)
                elif UPDATES.fullmatch(operation.type):
                    for tensor in operation.inputs[1:]:
                        pushes[tensor.op.name] = Transfer(
                            *variable_and_shard, size_of(tensor), operation.name
                        )
        return cls.starting_soon(pulls, pushes)

    @classmethod
    def starting_soon(
        cls,
        pulls: dict[str, Transfer],
        pushes: dict[str, Transfer],
        applied: dict[str, Transfer] | None = None,
        tokens: Iterable[str] = (),
        default_duration_s: float = 0.0,
    ) -> Self:
        """Return a plan to profile soon, as long as the environment says, else by default.

        Transfers are by the name of the operation that hands over the tensor, as are `tokens`.
        """
        begin_ns = time.time_ns() + round(AHEAD_S * 1e9)
        end_ns = begin_ns + round(_read_duration_s(default_duration_s) * 1e9)
        return cls(pulls, pushes, begin_ns, end_ns, applied or {}, list(tokens))

    @property
    def bytes_by_shard(self) -> dict[int, int]:
        """Bytes that a worker pushes to each server in a step, as far as they are known."""
        sizes: Counter[int] = Counter()
        for push in set(self.pushes.values()):
            sizes[push.shard] += push.nbytes or 0
        return dict(sorted(sizes.items()))

    @property
    def variables(self) -> set[str]:
        """The names of all variables."""
        return {transfer.variable for transfer in (*self.pulls.values(), *self.pushes.values())}


def has_plan(directory: Path) -> bool:
    """Return True if a plan has been written."""
    return (directory / _FILE).exists()


def write_plan(directory: Path, plan: Plan) -> None:
    """Write it, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f"{_FILE}.{os.getpid()}"
    unfinished.write_text(json.dumps(asdict(plan)))
    unfinished.replace(directory / _FILE)


def read_plan(directory: Path) -> Plan | None:
    """Return the plan that was written, None without one or if its window is over."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        fields = json.loads((directory / _FILE).read_text())
        for key in ("pulls", "pushes", "applied"):
            fields[key] = {name: Transfer(**values) for name, values in fields[key].items()}
        plan = Plan(**fields)
        return plan if plan.end_ns > time.time_ns() else None
    return None


def _find_variables(graph: Any) -> dict[str, tuple[str, int]]:
    """Return (variable, shard) by the name of the placeholder through which a graph sees it."""
    names_by_handle = {id(variable.handle): variable.name for variable in graph.variables}
    variables = {}
    for handle, placeholder in graph.captures:
        name = names_by_handle.get(id(handle))
        server_match = SERVER.search(getattr(handle, "device", None) or "")
        if server_match and name is not None:
            variables[placeholder.op.name] = (name.partition(":")[0], int(server_match[1]))
    return variables


def _first_input_name(operation: Any) -> str:
    inputs = operation.inputs
    return inputs[0].op.name if len(inputs) else ""


def size_of(tensor: Any) -> int | None:
    """Return a tensor's bytes; None where its shape is not known before it runs."""
    elements = tensor.shape.num_elements()
    return None if elements is None else elements * int(tensor.dtype.size)


def _read_duration_s(default_duration_s: float) -> float:
    default_s = max(default_duration_s, WINDOW_S)
    with contextlib.suppress(ValueError):
        return float(os.environ.get(WINDOW_VARIABLE, default_s))
    return default_s
