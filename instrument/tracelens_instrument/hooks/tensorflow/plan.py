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
    update_operation: str = ""  # the operation that takes it in
    server_op: str = "apply"  # what that does: apply it, or aggregate it


@dataclass(frozen=True)
class Plan:
    """Transfers by the name of the tensor's operation, and the window to profile, wall-clock ns.

    Of sessions also the updates that servers make by themselves, by operation, and the operations that
    hand out tokens to workers that are in step.
    """

    pull_by_tensor: dict[str, Transfer]
    push_by_tensor: dict[str, Transfer]
    begin_ns: int
    end_ns: int
    server_updates: dict[str, Transfer] = field(default_factory=dict)
    token_operations: list[str] = field(default_factory=list)

    @classmethod
    def from_graphs(cls, graphs: Iterable[Any]) -> Self:
        """Return the plan of all reads and updates of variables that are on parameter servers."""
        pull_by_tensor: dict[str, Transfer] = {}  # by the tensor's operation
        push_by_tensor: dict[str, Transfer] = {}
        for graph in graphs:
            variable_by_placeholder = _find_variables(graph)  # with its shard
            for operation in graph.get_operations():
                variable_and_shard = variable_by_placeholder.get(_first_input_name(operation))
                if variable_and_shard is None:
                    continue
                if operation.type == _READ:
                    nbytes = size_of(operation.outputs[0])
                    pull_by_tensor[operation.name] = Transfer(*variable_and_shard, nbytes)
                elif UPDATES.fullmatch(operation.type):
                    for tensor in operation.inputs[1:]:
                        push_by_tensor[tensor.op.name] = Transfer(
                            *variable_and_shard, size_of(tensor), operation.name
                        )
        return cls.starting_soon(pull_by_tensor, push_by_tensor)

    @classmethod
    def starting_soon(
        cls,
        pull_by_tensor: dict[str, Transfer],
        push_by_tensor: dict[str, Transfer],
        server_updates: dict[str, Transfer] | None = None,
        token_operations: Iterable[str] = (),
        default_duration_s: float = 0.0,
    ) -> Self:
        """Return a plan to profile soon, as long as the environment says, else by default.

        Transfers are by the name of the operation that hands over the tensor, updates by their own.
        """
        begin_ns = time.time_ns() + round(AHEAD_S * 1e9)
        end_ns = begin_ns + round(_read_duration_s(default_duration_s) * 1e9)
        updates = server_updates or {}
        return cls(pull_by_tensor, push_by_tensor, begin_ns, end_ns, updates, [*token_operations])

    @property
    def bytes_by_shard(self) -> dict[int, int]:
        """Bytes that a worker pushes to each server in a step, as far as they are known."""
        sizes: Counter[int] = Counter()
        for push in set(self.push_by_tensor.values()):
            sizes[push.shard] += push.nbytes or 0
        return dict(sorted(sizes.items()))

    @property
    def variable_names(self) -> set[str]:
        """The names of all variables."""
        transfers = (*self.pull_by_tensor.values(), *self.push_by_tensor.values())
        return {transfer.variable for transfer in transfers}


def has_plan(directory: Path) -> bool:
    """Return True if a plan has been written."""
    return (directory / _FILE).exists()


def write_plan(directory: Path, plan: Plan) -> None:
    """Write the plan, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f"{_FILE}.{os.getpid()}"
    unfinished.write_text(json.dumps(asdict(plan)))
    unfinished.replace(directory / _FILE)


def read_plan(directory: Path) -> Plan | None:
    """Return the plan in the trace folder, or None: without one, or if recording by it has ended.

    It says by the names of tensors which variable a worker pulls from or pushes to which server.
    """
    with contextlib.suppress(OSError, ValueError, TypeError):
        fields = json.loads((directory / _FILE).read_text())
        for key in ("pull_by_tensor", "push_by_tensor", "server_updates"):
            fields[key] = {name: Transfer(**values) for name, values in fields[key].items()}
        plan = Plan(**fields)
        return plan if plan.end_ns > time.time_ns() else None
    return None


def _find_variables(graph: Any) -> dict[str, tuple[str, int]]:
    """Return (variable, shard) by the name of the placeholder through which a graph sees it."""
    name_by_handle_id = {id(variable.handle): variable.name for variable in graph.variables}
    variable_by_placeholder = {}
    for handle, placeholder in graph.captures:
        name = name_by_handle_id.get(id(handle))
        server_match = SERVER.search(getattr(handle, "device", None) or "")
        if server_match and name is not None:
            variable_and_shard = name.partition(":")[0], int(server_match[1])
            variable_by_placeholder[placeholder.op.name] = variable_and_shard
    return variable_by_placeholder


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
