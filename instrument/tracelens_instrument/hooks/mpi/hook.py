"""mpi4py: collectives, messages and requests of communicators."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from tracelens_instrument import recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.core.environment import ALL_RANKS_VARIABLE
from tracelens_instrument.hooks.base import Switch, attempt
from tracelens_instrument.hooks.mpi import communicators, requests
from tracelens_instrument.hooks.mpi.clock_offsets import compare_clocks
from tracelens_instrument.hooks.mpi.log import list_members
from tracelens_instrument.hooks.mpi.replaced import Replaced

if TYPE_CHECKING:
    from tracelens_instrument.hooks.mpi.replaced import Function

__all__ = ["attach", "install", "matches"]
_METHODS: Final = Replaced()
_INITIALIZERS: Final = Replaced()
_RESUMES: Final = Switch()


def matches(obj: object) -> bool:
    """Return True if this is a communicator."""
    return isinstance(obj, MPI.Comm)


def attach(comm: MPI.Comm, *, record: bool = True) -> MPI.Comm:
    """Record what a communicator does, and those made from it; all its members must call this.

    It is returned. While nothing records, or steps alone do, nothing is done.

    Args:
        comm: The communicator.
        record: False: do not record it, nor communicators made from it.
    """
    if not record:
        communicators.leave_out(comm)
    else:
        _attach(comm, compares_clocks=True)
    return comm


def install(framework: Any) -> None:
    """Record all communicators as soon as MPI runs."""
    if framework.Is_initialized():
        communicators.RECORDS_EVERYTHING.turn_on_if_off()
        _attach(framework.COMM_WORLD, compares_clocks=_all_ranks_record())
    else:
        _INITIALIZERS.replace([framework], dict.fromkeys(("Init", "Init_thread"), _initializing))
        recorder.on_stop(_INITIALIZERS.restore)


def _initializing(_name: str, original: Function) -> Function:
    def initialize(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _INITIALIZERS.restore()
        install(MPI)
        return result

    return initialize


def _all_ranks_record() -> bool:
    """Return True if every rank surely records: a rank that does not would leave the others blocked.

    That is so where one `tracelens record` is around the launcher. Inside it each rank has one, or not.
    """
    return ALL_RANKS_VARIABLE in os.environ


def _attach(comm: MPI.Comm, *, compares_clocks: bool) -> None:
    """Record a communicator, if anything is recorded, and replace the methods of MPI."""
    if not _is_recorded():
        return
    if not communicators.is_known(comm):
        attempt(_record, comm, compares_clocks=compares_clocks)
    _resume()
    if _RESUMES.turn_on_if_off():
        recorder.on_start(_resume)


def _is_recorded() -> bool:
    return recorder.active() and recorder.detail() != "step"


def _record(comm: MPI.Comm, *, compares_clocks: bool) -> None:
    """Record a communicator; compare the clocks of its ranks if all of them take part in that."""
    if comm == MPI.COMM_WORLD:
        recorder.identify(comm.rank, comm.size)
    communicators.leave_out(comm)  # while we use it ourselves
    if compares_clocks and isinstance(comm, MPI.Intracomm):
        attempt(compare_clocks, comm, list_members(comm)[0])
    name = comm.name or f"MPI communicator of {comm.size}"
    communicators.record_communicator(comm, name)
    note_attached(f"{name} with {comm.size} ranks")


def _resume() -> None:
    """Put our functions in the place of MPI's methods, until the recording stops."""
    if _is_recorded():
        recorder.on_stop(_restore)
        if not _METHODS:
            attempt(_replace)


def _replace() -> None:
    communicators.replace(_METHODS)
    requests.replace(_METHODS)


def _restore() -> None:
    _METHODS.restore()
    requests.FLIGHT_BY_REQUEST.clear()
