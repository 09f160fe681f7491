"""What is known of one communicator: its number, its global ranks, its spans, and what was counted."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from tracelens.schema.record import NO_INDEX
from tracelens_instrument import recorder
from tracelens_instrument.hooks import mpi_payload
from tracelens_instrument.hooks.messages import MessageNumbers
from tracelens_instrument.hooks.mpi_clock import PENDING, write_pending
from tracelens_instrument.hooks.mpi_flight import Flight, Receipt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_instrument.hooks.mpi_table import Collective, Leg, PointToPoint
    from tracelens_instrument.span import Span, Token

__all__ = ["Log", "global_ranks"]

_TRACK: Final = "non-blocking"


def global_ranks(comm: MPI.Intracomm) -> list[int]:
    """Return the members' ranks in COMM_WORLD."""
    mine, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        return [int(rank) for rank in mine.Translate_ranks(None, world)]
    finally:
        mine.Free()
        world.Free()


class Log:
    """Records what one communicator does; collectives and messages are counted apart."""

    def __init__(self, comm: MPI.Intracomm, name: str) -> None:
        self.name = name
        self.ranks = global_ranks(comm)
        self._index = recorder.communicator(self.ranks, name)
        self._spans: dict[tuple[str, str | None], Span] = {}
        self._next_collective = itertools.count().__next__
        self._messages = MessageNumbers()

    def collective(self, name: str, row: Collective, values: Mapping[str, Any]) -> Token:
        """Begin a collective on this thread, or on the track if it does not block."""
        nbytes = mpi_payload.of_call(row, values, len(self.ranks))
        track, span = _track(name), self.span(name, row.op)
        if row.op is None:
            return span.begin(track, nbytes=nbytes)
        seq = self._next_collective()
        if row.rooted:
            root = self.global_rank(values.get("root", 0))
            token = span.begin(track, nbytes=nbytes, seq=seq, peer=root)
        else:
            token = span.begin(track, nbytes=nbytes, seq=seq)
        if PENDING:
            write_pending()
        return token

    def messages(self, name: str, row: PointToPoint, values: Mapping[str, Any]) -> Flight:
        """Begin the messages of a call."""
        track = _track(name)
        found = Flight(values.get("status"))
        for leg in row.legs:
            self._message(found, name, leg, values, track)
        if PENDING:
            write_pending()
        return found

    def _message(
        self,
        found: Flight,
        name: str,
        leg: Leg,
        values: Mapping[str, Any],
        track: int | None,
    ) -> None:
        receives = leg.op == "recv"
        peer = values.get(leg.peer, MPI.ANY_SOURCE)
        tag = values.get(leg.tag, MPI.ANY_TAG if receives else 0)
        if peer == MPI.PROC_NULL:
            return
        nbytes = mpi_payload.of_buffer(values.get(leg.payload))
        span = self.span(name, leg.op)
        if receives and (peer == MPI.ANY_SOURCE or tag == MPI.ANY_TAG):
            found.receipt = Receipt(self, span, track, span.begin(track, nbytes=nbytes))
        else:
            seq = self.next_message(leg.op, peer, tag)
            token = span.begin(track, nbytes=nbytes, seq=seq, peer=self.global_rank(peer), key=tag)
            found.tokens.append(token)

    def global_rank(self, rank: int) -> int:
        """Return a member's rank in COMM_WORLD; `NO_INDEX` for what is no member."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else NO_INDEX

    def next_message(self, op: str, peer: int, tag: int) -> int:
        """Count the messages to or from a peer with a tag."""
        return self._messages.next(op, peer, tag)

    def span(self, name: str, op: str | None) -> Span:
        """Return the handle of a method on this communicator."""
        key = (name, op)
        if key not in self._spans:
            self._spans[key] = recorder.span(
                name, kind="reduction", op=op, communicator=self._index
            )
        return self._spans[key]


def _track(name: str) -> int | None:
    """Return where a call is shown that goes on beside the code; None: on its thread."""
    return recorder.track(_TRACK) if name[0] in "Ii" or name.endswith("_init") else None
