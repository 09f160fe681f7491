"""What a session's graph moves between workers and servers, by the devices of its operations.

Devices are those that the program asked for (`replica_device_setter`). A tensor that a server makes
from a variable and a worker takes is a pull; one that a worker makes, and that updates one variable, or
is added up for it (`SyncReplicasOptimizer`), is a push.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from tracelens_instrument.hooks.tensorflow.plan import SERVER, UPDATES, Plan, Transfer, size_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["plan_of"]

_VARIABLES: Final = ("Variable", "VariableV2", "VarHandleOp", "AutoReloadVariable")
_ADDS_UP: Final = re.compile(r"(Resource|Sparse)?AccumulatorApplyGradient")
_LOCAL_STEP: Final = 1  # the input that tells an accumulator how old a gradient is
_LEFT_OUT: Final = ("Identity", "Reshape")
_DEQUEUES: Final = "QueueDequeue"


def plan_of(graph: Any, wanted_s: float) -> Plan:
    """Find what a graph moves and updates; the window is as long as wanted, if nothing else is said."""
    operations = graph.get_operations()
    updates = {
        operation.name: (operation, *place)
        for operation in operations
        if (place := _updated(operation)) is not None
    }
    pulls: dict[str, Transfer] = {}
    tokens: list[str] = []
    for operation in operations:
        shard = _shard(operation)
        if shard is not None and _is_taken_elsewhere(operation):
            if operation.type.startswith(_DEQUEUES):
                tokens.append(operation.name)
            elif (variable := _variable(operation, shard)) is not None:
                pulls[operation.name] = Transfer(variable, shard, size_of(operation.outputs[0]))
    pushes = dict(_pushes(updates.values()))
    applied = {
        name: Transfer(variable, shard, size_of(operation.inputs[0]))
        for name, (operation, variable, shard) in updates.items()
        if not _ADDS_UP.fullmatch(operation.type)
    }
    return Plan.soon(pulls, pushes, applied, tokens, wanted_s)


def _pushes(updates: Iterable[tuple[Any, str, int]]) -> Iterator[tuple[str, Transfer]]:
    """Yield gradients from workers; a tensor that many updates share is a rate and no gradient."""
    transfers_by_tensor: defaultdict[str, list[Transfer]] = defaultdict(list)
    for operation, variable, shard in updates:
        adds_up = _ADDS_UP.fullmatch(operation.type) is not None
        for input_index, tensor in enumerate(operation.inputs):
            if (
                input_index == 0
                or (adds_up and input_index == _LOCAL_STEP)
                or _shard(tensor.op) is not None
            ):
                continue
            served = "aggregate" if adds_up else "apply"
            transfer = Transfer(variable, shard, size_of(tensor), operation.name, served)
            for name in _aliases(tensor.op):
                transfers_by_tensor[name].append(transfer)
    for tensor_name, transfers in transfers_by_tensor.items():
        if len(transfers) == 1:
            yield tensor_name, transfers[0]


def _aliases(operation: Any) -> Iterator[str]:
    """Yield the names of operations that may hand over the tensor: TensorFlow removes the others."""
    yield operation.name
    while operation.type in _LEFT_OUT and len(operation.inputs):
        operation = operation.inputs[0].op
        yield operation.name


def _updated(operation: Any) -> tuple[str, int] | None:
    """Return the variable that an operation on a server updates, and the server."""
    shard = _shard(operation)
    if shard is None or not operation.inputs:
        return None
    if _ADDS_UP.fullmatch(operation.type):
        name = operation.inputs[0].op.get_attr("shared_name").decode()
        return (name.partition(":")[0], shard) if name else None
    if UPDATES.fullmatch(operation.type):
        variable = _variable(operation.inputs[0].op, shard)
        return None if variable is None else (variable, shard)
    return None


def _variable(operation: Any, shard: int) -> str | None:
    """Return the variable from which a server's operation makes its output; None if from none."""
    visited: set[str] = set()
    waiting = [operation]
    while waiting:
        candidate = waiting.pop(0)
        if candidate.type in _VARIABLES:
            return str(candidate.name)
        if candidate.name not in visited and _shard(candidate) == shard:
            visited.add(candidate.name)
            waiting += _sources(candidate.inputs)
    return None


def _sources(tensors: Sequence[Any]) -> list[Any]:
    return [tensor.op for tensor in tensors]


def _is_taken_elsewhere(operation: Any) -> bool:
    return any(
        _shard(consumer) is None for tensor in operation.outputs for consumer in tensor.consumers()
    )


def _shard(operation: Any) -> int | None:
    server = SERVER.search(operation.device)
    return int(server[1]) if server else None
