"""The words of a trace: kinds, operations, types, roles, and how its files are named."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

SCHEMA_VERSION: Final = 2

EVENT_TYPES: Final = ("span", "instant", "counter")
DEVICE_TIMES: Final = "device"  # the type of a live record that is no event: device times of a span
KINDS: Final = (
    "step",
    "data",
    "forward",
    "backprop",
    "reduction",
    "update",
    "wait",
    "ps",
    "elastic",
    "checkpoint",
    "gc",
    "device",
    "user",
)
PICKLE: Final = (
    "pickle"  # algorithm of calls whose objects are pickled first: mpi4py's lowercase ones
)
STATUSES: Final = ("closed", "open", "exception", "estimated")
ROLES: Final = ("worker", "ps")
MOST_RANKS: Final = 1 << 20  # of a job; who says that there are more is not believed
DETAILS: Final = ("step", "phase", "layer", "op")  # what hooks record, each also what stands before

COLLECTIVES: Final = (
    "allreduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
POINT_TO_POINT: Final = ("send", "recv")
OPS: Final[dict[str, tuple[str, ...]]] = {
    "reduction": (*COLLECTIVES, *POINT_TO_POINT),
    "ps": ("push", "pull", "receive", "aggregate", "apply", "reply"),
    "elastic": ("turn_wait", "weights_down", "weights_up", "worker_update", "master_update"),
    # To be given work, by a coordinator or a host: not for other ranks. For requests in flight, of which
    # a thread that has such waits records all.
    "wait": ("launch", "request_wait"),
}

# What a span may tell beside its name, kind and times, in the order in which people read it.
FACTS: Final = (
    "op",
    "bytes",
    "communicator",
    "seq",
    "bucket",
    "peer",
    "shard",
    "key",
    "request",
    "queue_depth",
    "algorithm",
    "status",
)

# No rank leaves one of these before the last has arrived, so their ends tie clocks together.
FULL_COLLECTIVES: Final = ("allreduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")

# Work that a rank does by itself; whatever else fills its time is waiting, transfer or unknown.
OWN_KINDS: Final = ("data", "forward", "backprop", "update", "checkpoint", "gc", "user")
# What a step does before it updates the weights.
BEFORE_UPDATE: Final = ("data", "forward", "backprop")
# Work a rank gets paid for: POP's "useful" time.
USEFUL_KINDS: Final = ("forward", "backprop", "update", "user")
EXCHANGE_KINDS: Final = ("ps", "elastic")  # with servers, or the center of elastic averaging
COMMUNICATION_KINDS: Final = ("reduction", "ps", "elastic", "wait")

# Why events are lost, where the recorder knows.
NO_ROOM: Final = "no room or no permission for a segment"
BUDGET_REACHED: Final = "the byte budget was used up"
OUTDATED: Final = "older than the steps to be kept"
CROWDED_OUT: Final = "no room for as many steps as were to be kept"
CLIPPED: Final = "value out of range"
OUTLASTED: Final = "ends of spans that were open for very long"
UNKNOWN_TIMES: Final = "device times that were not known in time"
TOO_MANY_NAMES: Final = "too many names"
FAILED: Final = "failure of the recorder itself"
SUMMED_UP: Final = "summed up in a conversion"
CHOSEN_LOSSES: Final = (OUTDATED, SUMMED_UP)  # what the user asked to leave out

TRACE_SUFFIX: Final = ".arrow"
SEGMENTS_SUFFIX: Final = ".segments"
ELSEWHERE_SUFFIX: Final = ".elsewhere"
SEGMENT_SUFFIX: Final = ".seg"
SIDE_FILE: Final = "side.jsonl"
UNFINISHED_FILE: Final = "events.unfinished"  # what is Arrow already of a recording
SAMPLES_FOLDER: Final = "samples"  # of call stacks

_STEM: Final = r"(?P<role>worker|ps)-(?P<rank>\d{5,})-(?P<pid>\d+)"


def make_stem(role: str, rank: int, pid: int) -> str:
    """Name a process's files, without suffix: ``worker-00003-41237``."""
    return f"{role}-{rank:05d}-{pid}"


def parse_stem(name: str) -> tuple[str, int, int] | None:
    """Read (role, rank, pid) back from a file name; None if it is not one of ours."""
    match = re.fullmatch(_STEM, name.removesuffix(TRACE_SUFFIX).removesuffix(SEGMENTS_SUFFIX))
    return (match["role"], int(match["rank"]), int(match["pid"])) if match else None
