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
    from collections.abc import Iterable, Iterator

__all__ = ["make_plan"]

_VARIABLES: Final = ("Variable", "VariableV2", "VarHandleOp", "AutoReloadVariable")
_ACCUMULATES: Final = re.compile(r"(Resource|Sparse)?AccumulatorApplyGradient")
_LOCAL_STEP: Final = 1  # the input that tells an accumulator how old a gradient is
_REMOVED_BY_TENSORFLOW: Final = ("Identity", "Reshape")
_DEQUEUES: Final = "QueueDequeue"


def make_plan(graph: Any, default_duration_s: float) -> Plan:
    """Return the plan of a graph's transfers and updates, for a window of this default length."""
    operations = graph.get_operations()
    updates = {  # (operation, variable, shard) by the operation's name
        operation.name: (operation, *variable_and_shard)
        for operation in operations
        if (variable_and_shard := _find_updated_variable(operation)) is not None
    }
    pull_by_tensor: dict[str, Transfer] = {}
    token_operations: list[str] = []  # operations that hand out tokens
    for operation in operations:
        shard = _find_server(operation)
        if shard is not None and _goes_to_worker(operation):
            if operation.type.startswith(_DEQUEUES):
                token_operations.append(operation.name)
            elif (variable := _find_source_variable(operation, shard)) is not None:
                nbytes = size_of(operation.outputs[0])
                pull_by_tensor[operation.name] = Transfer(variable, shard, nbytes)
    push_by_tensor = dict(_find_pushes(updates.values()))
    server_updates = {
        name: Transfer(variable, shard, size_of(operation.inputs[0]))
        for name, (operation, variable, shard) in updates.items()
        if not _ACCUMULATES.fullmatch(operation.type)
    }
    return Plan.starting_soon(
        pull_by_tensor, push_by_tensor, server_updates, token_operations, default_duration_s
    )


def _find_pushes(updates: Iterable[tuple[Any, str, int]]) -> Iterator[tuple[str, Transfer]]:
    """Yield each gradient that a worker pushes, after the name of the operation that makes it.

    `updates` are (operation, variable, shard). A tensor of many updates is a learning rate.
    """
    transfers_by_tensor: defaultdict[str, list[Transfer]] = defaultdict(list)
    for operation, variable, shard in updates:
        accumulates = _ACCUMULATES.fullmatch(operation.type) is not None
        for input_index, tensor in enumerate(operation.inputs):
            if (
                input_index == 0
                or (accumulates and input_index == _LOCAL_STEP)
                or _find_server(tensor.op) is not None
            ):
                continue
            server_op = "aggregate" if accumulates else "apply"
            transfer = Transfer(variable, shard, size_of(tensor), operation.name, server_op)
            for name in _aliases(tensor.op):
                transfers_by_tensor[name].append(transfer)
    for tensor_name, transfers in transfers_by_tensor.items():
        if len(transfers) == 1:
            yield tensor_name, transfers[0]


def _aliases(operation: Any) -> Iterator[str]:
    """Yield the names of operations that may hand over the tensor: TensorFlow removes the others."""
    yield operation.name
    while operation.type in _REMOVED_BY_TENSORFLOW and len(operation.inputs):
        operation = operation.inputs[0].op
        yield operation.name


def _find_updated_variable(operation: Any) -> tuple[str, int] | None:
    """Return the variable that a server's operation updates, and the shard; None if it does not."""
    shard = _find_server(operation)
    if shard is None or not operation.inputs:
        return None
    if _ACCUMULATES.fullmatch(operation.type):
        name = operation.inputs[0].op.get_attr("shared_name").decode()
        return (name.partition(":")[0], shard) if name else None
    if UPDATES.fullmatch(operation.type):
        variable = _find_source_variable(operation.inputs[0].op, shard)
        return None if variable is None else (variable, shard)
    return None


def _find_source_variable(operation: Any, shard: int) -> str | None:
    """Return the variable from which a server's operation makes its output; None if from none."""
    visited_names: set[str] = set()
    queue = [operation]
    while queue:
        candidate = queue.pop(0)
        if candidate.type in _VARIABLES:
            return str(candidate.name)
        if candidate.name not in visited_names and _find_server(candidate) == shard:
            visited_names.add(candidate.name)
            queue += [tensor.op for tensor in candidate.inputs]
    return None


def _goes_to_worker(operation: Any) -> bool:
    consumers = (consumer for tensor in operation.outputs for consumer in tensor.consumers())
    return any(_find_server(consumer) is None for consumer in consumers)


def _find_server(operation: Any) -> int | None:
    server_match = SERVER.search(operation.device)
    return int(server_match[1]) if server_match else None
