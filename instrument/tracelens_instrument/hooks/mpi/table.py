"""MPI's methods that are recorded, as a table: one more recorded method takes one more line.

The names of the parameters stand here because mpi4py's methods are compiled and the values that a
record holds (payload, root, peer, tag) may be given by position or by name. Methods whose name begins
with an ``I`` (``i``) return a request; those of collectives follow from the blocking ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "BLOCKING",
    "COLLECTIVES",
    "DERIVING",
    "MATCHED",
    "MESSAGE_PROBES",
    "NON_BLOCKING",
    "PERSISTENT",
    "PERSISTENT_MESSAGES",
    "PICKLING",
    "POINT_TO_POINT",
    "PROBES",
    "WINDOW_CALLS",
    "WINDOW_MAKERS",
    "Collective",
    "Leg",
    "PointToPoint",
    "Probe",
]
_BOTH: Final = ("sendbuf", "recvbuf")
_ROOTED: Final = ("sendbuf", "recvbuf", "root")


@dataclass(frozen=True)
class Collective:
    """A collective: its operation, its parameters, and which of them is this rank's payload.

    Without an operation, ranks wait for some others or for nobody: its time is
    communication, but no arrival follows from it, so its calls are not matched.
    With `IN_PLACE` (or None) as payload, `in_place_parameter` is it, or holds those of all ranks.
    """

    op: str | None
    parameters: tuple[str, ...] = ()
    payload_parameter: str | None = None
    in_place_parameter: str | None = None
    in_place_holds_all: bool = False

    @property
    def has_root(self) -> bool:
        """Whether one rank is the source or the destination of all."""
        return "root" in self.parameters


@dataclass(frozen=True)
class Leg:
    """A message that a call sends or receives: which parameters are its buffer, peer and tag."""

    op: str
    payload_parameter: str
    peer_parameter: str
    tag_parameter: str


@dataclass(frozen=True)
class PointToPoint:
    """A call that sends, receives, or both."""

    parameters: tuple[str, ...]
    legs: tuple[Leg, ...]


def _of_buffers(
    op: str, parameters: tuple[str, ...] = _BOTH, *, receives: bool = False, holds_all: bool = False
) -> Collective:
    send, receive = _BOTH[::-1] if receives else _BOTH
    return Collective(op, parameters, send, receive, holds_all)


_MATCHED_COLLECTIVES: Final = {
    "Barrier": Collective("barrier"),
    "Bcast": Collective("broadcast", ("buf", "root"), "buf"),
    "Reduce": _of_buffers("reduce", ("sendbuf", "recvbuf", "op", "root")),
    "Allreduce": _of_buffers("allreduce"),
    "Allgather": _of_buffers("all_gather", holds_all=True),
    "Allgatherv": Collective("all_gather", _BOTH, "sendbuf"),
    "Gather": _of_buffers("gather", _ROOTED, holds_all=True),
    "Gatherv": Collective("gather", _ROOTED, "sendbuf"),
    "Scatter": _of_buffers("scatter", _ROOTED, receives=True, holds_all=True),
    "Scatterv": Collective("scatter", _ROOTED, "recvbuf"),
    "Alltoall": _of_buffers("all_to_all"),
    "Alltoallv": _of_buffers("all_to_all"),
    "Alltoallw": Collective("all_to_all", _BOTH),
    "Reduce_scatter": _of_buffers("reduce_scatter"),
    "Reduce_scatter_block": _of_buffers("reduce_scatter"),
}

# How large a pickled object will be is not known before it is pickled, so no payload.
_PICKLING: Final = {
    "barrier": Collective("barrier"),
    "bcast": Collective("broadcast", ("obj", "root")),
    "reduce": Collective("reduce", ("sendobj", "op", "root")),
    "allreduce": Collective("allreduce", ("sendobj", "op")),
    "allgather": Collective("all_gather", ("sendobj",)),
    "gather": Collective("gather", ("sendobj", "root")),
    "scatter": Collective("scatter", ("sendobj", "root")),
    "alltoall": Collective("all_to_all", ("sendobj",)),
}

_LOOSE: Final = {
    "Scan": Collective(None, (*_BOTH, "op"), "sendbuf", "recvbuf"),
    "Exscan": Collective(None, (*_BOTH, "op"), "sendbuf", "recvbuf"),
    "Neighbor_allgather": Collective(None, _BOTH, "sendbuf"),
    "Neighbor_allgatherv": Collective(None, _BOTH, "sendbuf"),
    "Neighbor_alltoall": Collective(None, _BOTH, "sendbuf"),
    "Neighbor_alltoallv": Collective(None, _BOTH, "sendbuf"),
    "Neighbor_alltoallw": Collective(None, _BOTH),
}

_LOOSE_PICKLING: Final = {
    "scan": Collective(None, ("sendobj", "op")),
    "exscan": Collective(None, ("sendobj", "op")),
    "neighbor_allgather": Collective(None, ("sendobj",)),
    "neighbor_alltoall": Collective(None, ("sendobj",)),
}

_OF_BUFFERS: Final = {**_MATCHED_COLLECTIVES, **_LOOSE}
BLOCKING: Final[dict[str, Collective]] = {**_OF_BUFFERS, **_PICKLING, **_LOOSE_PICKLING}
NON_BLOCKING: Final = {f"I{name.lower()}": row for name, row in _OF_BUFFERS.items()}
COLLECTIVES: Final = {**BLOCKING, **NON_BLOCKING}

# They return a request that can be started again and again. Messages in parts are matched by
# their own order, so they are not counted among the others.
PERSISTENT: Final = {
    **{f"{name}_init": row for name, row in _OF_BUFFERS.items()},
    **dict.fromkeys(("Psend_init", "Precv_init"), Collective(None, ("buf",), "buf")),
}

# They return a communicator, recorded if the one it comes from is; ranks wait for each other in it.
DERIVING: Final = dict.fromkeys(
    (
        "Clone",
        "Create",
        "Create_cart",
        "Create_dist_graph",
        "Create_dist_graph_adjacent",
        "Create_graph",
        "Create_group",
        "Create_intercomm",
        "Dup",
        "Dup_with_info",
        "Idup",
        "Idup_with_info",
        "Merge",
        "Split",
        "Split_type",
        "Sub",
    ),
    Collective(None),
)

# One-sided communication: the calls that make a window, by the place of the communicator among what
# they are given, and those in which a rank may wait for others.
WINDOW_MAKERS: Final = {"Create": 3, "Allocate": 3, "Allocate_shared": 3, "Create_dynamic": 1}
WINDOW_CALLS: Final = (
    *("Fence", "Start", "Complete", "Post", "Wait", "Lock", "Unlock", "Lock_all", "Unlock_all"),
    *("Flush", "Flush_all", "Flush_local", "Flush_local_all"),
)

_SEND: Final = PointToPoint(("buf", "dest", "tag"), (Leg("send", "buf", "dest", "tag"),))
_SEND_OBJECT: Final = PointToPoint(("obj", "dest", "tag"), (Leg("send", "obj", "dest", "tag"),))
_IRECV: Final = PointToPoint(("buf", "source", "tag"), (Leg("recv", "buf", "source", "tag"),))
_RECV: Final = PointToPoint((*_IRECV.parameters, "status"), _IRECV.legs)


def _exchange(send: str, receive: str) -> PointToPoint:
    legs = (Leg("send", send, "dest", "sendtag"), Leg("recv", receive, "source", "recvtag"))
    names = (send, "dest", "sendtag", receive, "source", "recvtag", "status")
    return PointToPoint(tuple(dict.fromkeys(names)), legs)


POINT_TO_POINT: Final[dict[str, PointToPoint]] = {
    **dict.fromkeys(("Send", "Ssend", "Bsend", "Rsend"), _SEND),
    **dict.fromkeys(("Isend", "Issend", "Ibsend", "Irsend"), _SEND),
    **dict.fromkeys(("send", "ssend", "bsend", "isend", "issend", "ibsend"), _SEND_OBJECT),
    **dict.fromkeys(("Recv", "recv"), _RECV),
    **dict.fromkeys(("Irecv", "irecv"), _IRECV),
    "Sendrecv": _exchange("sendbuf", "recvbuf"),
    "Sendrecv_replace": _exchange("buf", "buf"),
    "sendrecv": _exchange("sendobj", "recvbuf"),
    "Isendrecv": _exchange("sendbuf", "recvbuf"),
    "Isendrecv_replace": _exchange("buf", "buf"),
}

PERSISTENT_MESSAGES: Final = {
    **dict.fromkeys(("Send_init", "Ssend_init", "Bsend_init", "Rsend_init"), _SEND),
    "Recv_init": _IRECV,
}


@dataclass(frozen=True)
class Probe:
    """A call that looks for a message; it may wait for one."""

    is_blocking: bool
    parameters: tuple[str, ...] = ("source", "tag", "status")


_OF_MESSAGE: Final = ("comm", "source", "tag", "status")
PROBES: Final = {
    **dict.fromkeys(("Probe", "Mprobe", "probe", "mprobe"), Probe(is_blocking=True)),
    **dict.fromkeys(("Improbe", "improbe"), Probe(is_blocking=False)),
}
MESSAGE_PROBES: Final = {
    **dict.fromkeys(("Probe", "probe"), Probe(is_blocking=True, parameters=_OF_MESSAGE)),
    **dict.fromkeys(("Iprobe", "iprobe"), Probe(is_blocking=False, parameters=_OF_MESSAGE)),
}

# They receive a message that a probe has taken out of the queue.
MATCHED: Final = dict.fromkeys(("Recv", "recv", "Irecv", "irecv"))

# They pickle the objects that they are given.
PICKLING: Final = frozenset(
    name for name in (*BLOCKING, *POINT_TO_POINT) if name[0].islower() and name != "barrier"
)
