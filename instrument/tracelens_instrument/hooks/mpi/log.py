"""What is recorded of one communicator: its ranks and spans, what a call carries, what is in flight.

Payloads come from what mpi4py takes as a buffer. Of a call in flight some is known at the call, the rest
is in the status at the end.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpi4py import MPI

from tracelens.schema.record import NO_BYTES, NO_INDEX
from tracelens.schema.vocabulary import PICKLE
from tracelens_instrument import recorder
from tracelens_instrument.core.clock import now
from tracelens_instrument.hooks.base import MessageNumbers, guarded
from tracelens_instrument.hooks.mpi.clock_offsets import PENDING_READINGS, write_pending
from tracelens_instrument.hooks.mpi.table import PICKLING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_instrument.core.spans import Span, Token
    from tracelens_instrument.hooks.mpi.table import Collective, Leg, PointToPoint

__all__ = [
    "Claim",
    "CommLog",
    "Flight",
    "Receipt",
    "free_to_global_ranks",
    "list_members",
    "payload_of_buffer",
    "payload_of_call",
    "to_global_ranks",
]
_TRACK: Final = "non-blocking"


def payload_of_call(spec: Collective, arguments: Mapping[str, Any], rank_count: int) -> int:
    """Return the bytes of this rank's payload in a collective of some ranks, or `NO_BYTES`.

    `spec` names the parameter of its buffer; in place of `IN_PLACE` another, maybe for all ranks.
    """
    if spec.payload_parameter is None:
        return NO_BYTES
    buffer = arguments.get(spec.payload_parameter)
    if not _is_absent(buffer):
        return payload_of_buffer(buffer)
    if spec.in_place_parameter is None:
        return NO_BYTES
    nbytes = payload_of_buffer(arguments.get(spec.in_place_parameter))
    return nbytes // rank_count if spec.in_place_holds_all and nbytes != NO_BYTES else nbytes


def payload_of_buffer(buffer: Any) -> int:
    """Return the bytes of a buffer, or of a part: (data, count, displacement, datatype) or less.

    `NO_BYTES` where it cannot be told.
    """
    try:
        if isinstance(buffer, list | tuple):
            return _bytes_of_specification(buffer)
        return _bytes_of_data(buffer)
    except (TypeError, ValueError, AttributeError, KeyError, BufferError):
        return NO_BYTES


def _is_absent(buffer: Any) -> bool:
    return buffer is None or buffer is MPI.IN_PLACE


def _bytes_of_data(data: Any) -> int:
    nbytes = getattr(data, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else memoryview(data).nbytes


def _bytes_of_specification(specification: Sequence[Any]) -> int:
    """Return the bytes of (buffer, count, MPI datatype or code) or less: without a count all of it."""
    data, *others = specification
    datatype = others.pop() if others and isinstance(others[-1], MPI.Datatype | str) else None
    count = _sum_counts(others[0]) if others and others[0] is not None else None  # of elements
    if count is None:
        return _bytes_of_data(data)
    if datatype is None:
        return count * memoryview(data).itemsize
    mpi_datatype = MPI.Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype
    return count * mpi_datatype.Get_size()


def _sum_counts(counts_argument: Any) -> int | None:
    """Add up counts: a number or numbers, or either of them with displacements, in a tuple."""
    counts = counts_argument[0] if isinstance(counts_argument, tuple) else counts_argument
    if counts is None:
        return None
    return sum(map(int, counts)) if hasattr(counts, "__len__") else int(counts)


class Receipt:
    """A receive from anybody, or with any tag: sender, tag, number and size come with the status.

    While it waits, it is in the trace without them.
    """

    def __init__(self, log: CommLog, span: Span, track: int | None, token: Token) -> None:
        self._log, self._span, self._track, self.token = log, span, track, token
        self._start_ns = now()

    def end(self, status: MPI.Status | None, failed: bool) -> None:  # noqa: FBT001 - as Token.end
        """Record the message that came, or, without a status, that the receive is over."""
        end_ns = now()
        if failed or status is None:
            self.token.end(failed)
            return
        source, tag = status.Get_source(), status.Get_tag()
        self.token.discard()
        if source == MPI.PROC_NULL:
            return
        self._span.complete(
            self._start_ns,
            end_ns,
            self._track,
            nbytes=status.Get_count(MPI.BYTE),
            seq=self._log.number_message("recv", source, tag),
            peer=self._log.to_global_rank(source),
            key=tag,
        )


class Flight:
    """The open spans of one call; ended once, when it is first seen complete.

    `last_test_ns` is when the program last tested for it, `first_test_ns` when it began to.
    """

    def __init__(self, tokens: list[Token], status: MPI.Status | None = None) -> None:
        self.open_tokens = tokens
        self.receipt: Receipt | None = None  # of a receive whose sender is not known yet
        self.status = status
        self.first_test_ns = self.last_test_ns = -sys.maxsize
        self._is_cancelled = False

    @property
    def needs_status(self) -> bool:
        """Whether the end cannot be recorded without a status."""
        return self.receipt is not None or self._is_cancelled

    def cancel(self) -> None:
        """Note that the operation may never complete."""
        self._is_cancelled = True

    @guarded
    def end(self, status: MPI.Status | None = None, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - as Token.end
        """Close the spans; remove them if MPI says that the operation was cancelled."""
        final_status = status or self.status
        tokens, self.open_tokens = self.open_tokens, []
        receipt, self.receipt = self.receipt, None
        if self._is_cancelled and final_status is not None and final_status.Is_cancelled():
            for token in tokens if receipt is None else (*tokens, receipt.token):
                token.discard()
            return
        for token in tokens:
            token.end(failed)
        if receipt is not None:
            receipt.end(final_status, failed)


class Notices:
    """The messages of a call to several ranks, ended with it."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens

    def __enter__(self) -> None:
        """Go on with the call."""

    def __exit__(self, failed: object, *_: object) -> None:
        """End all notices, the last one first, as they lie in each other."""
        for token in reversed(self._tokens):
            token.end(failed is not None)


class Claim(NamedTuple):
    """A message that a probe has taken out of the queue: its number, sender, tag and size."""

    seq: int
    peer_rank: int
    tag: int
    nbytes: int


def list_members(comm: MPI.Comm) -> tuple[list[int], list[int]]:
    """Return the global ranks of a communicator's members, and of the receivers of its messages."""
    own_ranks = free_to_global_ranks(comm.Get_group())
    if not isinstance(comm, MPI.Intercomm):
        return own_ranks, own_ranks  # it is not between two groups
    peer_ranks = free_to_global_ranks(comm.Get_remote_group())
    return sorted({*own_ranks, *peer_ranks}), peer_ranks


def free_to_global_ranks(group: MPI.Group) -> list[int]:
    """Free a group, and return the global ranks that it had."""
    try:
        return to_global_ranks(group)
    finally:
        group.Free()


def to_global_ranks(group: MPI.Group) -> list[int]:
    """Return the ranks of a group's members in COMM_WORLD; `NO_INDEX` for processes of another one."""
    world_group = MPI.COMM_WORLD.Get_group()
    try:
        ranks = group.Translate_ranks(None, world_group)
        return [NO_INDEX if rank == MPI.UNDEFINED else int(rank) for rank in ranks]
    finally:
        world_group.Free()


class CommLog:
    """Records what one communicator does; collectives and messages are counted apart.

    Args:
        name: What it is called.
        ranks: The global ranks of its members.
        peers: Global ranks of the receivers of its messages, by their rank there.
    """

    def __init__(self, name: str, ranks: list[int], peers: list[int]) -> None:
        self.communicator_name, self.member_ranks, self.peer_ranks = name, ranks, peers
        self._communicator_id = recorder.communicator(
            [rank for rank in ranks if rank != NO_INDEX], name
        )
        # Between two groups a rank waits for the other one; processes that another job started have
        # ranks of their own.
        self._is_matched = ranks is peers and NO_INDEX not in ranks
        self._span_by_method: dict[tuple[str, str | None], Span] = {}
        self._next_collective_seq = itertools.count().__next__
        self._message_numbers = MessageNumbers()

    def begin_collective(self, name: str, spec: Collective, arguments: Mapping[str, Any]) -> Token:
        """Begin a collective on this thread, or on the track if it does not block.

        Only a call with an operation in `spec` is matched between ranks, by its number.
        """
        nbytes = payload_of_call(spec, arguments, len(self.member_ranks))
        op = spec.op if self._is_matched else None  # None: no other rank's call belongs to it
        track, span = _track(name), self.span_of_method(name, op)
        if op is None:
            return span.begin(track, nbytes=nbytes)
        seq = self._next_collective_seq()
        if spec.has_root:
            root = self.to_global_rank(arguments.get("root", 0))
            token = span.begin(track, nbytes=nbytes, seq=seq, peer=root)
        else:
            token = span.begin(track, nbytes=nbytes, seq=seq)
        if PENDING_READINGS:
            write_pending()
        return token

    def claim_message(self, status: MPI.Status) -> Claim:
        """Count a message that was taken out of the queue, to be received later."""
        source, tag = status.source, status.tag
        seq = self._message_numbers.next_number("recv", source, tag)
        return Claim(seq, self.to_global_rank(source), tag, status.Get_count(MPI.BYTE))

    def begin_claimed(self, name: str, claim: Claim) -> Flight:
        """Begin to receive such a message."""
        values = {
            "seq": claim.seq,
            "peer": claim.peer_rank,
            "key": claim.tag,
            "nbytes": claim.nbytes,
        }
        return Flight([self.span_of_method(name, "recv").begin(_track(name), **values)])

    def begin_messages(
        self, name: str, spec: PointToPoint, arguments: Mapping[str, Any]
    ) -> Flight | None:
        """Begin the messages of a call; return what is in flight, None if it exchanges nothing.

        `spec` has a leg for each, which names the parameters of its buffer, peer and tag.
        """
        track = _track(name)
        flight = Flight(tokens=[], status=arguments.get("status"))
        for leg in spec.legs:
            self._begin_leg(flight, name, leg, arguments, track)
        if PENDING_READINGS:
            write_pending()
        return flight if flight.open_tokens or flight.receipt is not None else None

    def begin_notices(self, name: str, op: str, ranks: Sequence[int], tag: int) -> Notices:
        """Begin messages without data to (``send``) or from (``recv``) global ranks, and return them."""
        span = self.span_of_method(name, op)
        return Notices(
            [
                span.begin(track=None, seq=self.number_message(op, rank, tag), peer=rank, key=tag)
                for rank in ranks
            ]
        )

    def _begin_leg(
        self, flight: Flight, name: str, leg: Leg, arguments: Mapping[str, Any], track: int | None
    ) -> None:
        """Add a message to `flight`: `leg` says which arguments are its buffer, peer and tag."""
        is_receive = leg.op == "recv"
        peer = arguments.get(leg.peer_parameter, MPI.ANY_SOURCE)
        tag = arguments.get(leg.tag_parameter, MPI.ANY_TAG if is_receive else 0)
        if peer == MPI.PROC_NULL:
            return
        nbytes = payload_of_buffer(arguments.get(leg.payload_parameter))
        span = self.span_of_method(name, leg.op)
        if is_receive and (peer == MPI.ANY_SOURCE or tag == MPI.ANY_TAG):
            flight.receipt = Receipt(self, span, track, span.begin(track, nbytes=nbytes))
        else:
            seq = self.number_message(leg.op, peer, tag)
            token = span.begin(
                track, nbytes=nbytes, seq=seq, peer=self.to_global_rank(peer), key=tag
            )
            flight.open_tokens.append(token)

    def to_global_rank(self, rank: int) -> int:
        """Return a receiver's rank in COMM_WORLD by its rank here; `NO_INDEX` for what is no member."""
        return self.peer_ranks[rank] if 0 <= rank < len(self.peer_ranks) else NO_INDEX

    def number_message(self, op: str, peer: int, tag: int) -> int:
        """Count the messages to or from a peer with a tag."""
        return self._message_numbers.next_number(op, peer, tag)

    def span_of_method(self, name: str, op: str | None) -> Span:
        """Return the handle of a method on this communicator."""
        key = (name, op)
        if key not in self._span_by_method:
            self._span_by_method[key] = recorder.span(
                name,
                kind="reduction",
                op=op,
                algorithm=PICKLE if name in PICKLING else None,
                communicator=self._communicator_id,
            )
        return self._span_by_method[key]


def _track(name: str) -> int | None:
    """Return the track of a non-blocking call; None for its own thread."""
    return recorder.track(_TRACK) if name[0] in "Ii" or name.endswith("_init") else None
