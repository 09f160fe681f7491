"""mpi4py: collectives, messages and requests of communicators."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from tracelens_instrument import recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.core.environment import ALL_RANKS_VARIABLE
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.mpi import requests
from tracelens_instrument.hooks.mpi.clock_offsets import compare_clocks
from tracelens_instrument.hooks.mpi.communicators import known_communicator, record_communicator
from tracelens_instrument.hooks.mpi.log import global_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["attach", "install", "matches"]


def matches(obj: object) -> bool:
    """Return whether this is a communicator, other than one between two groups."""
    return isinstance(obj, MPI.Intracomm)


def attach(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator with the same handle that records itself; all its members must call this.

    Communicators made from it record themselves, too. While nothing records, or steps alone do, it is
    returned as it is.
    """
    return _attached(comm, compare=True)


def install(framework: Any) -> None:
    """Record COMM_WORLD, and whatever is made from it, as soon as MPI runs."""
    if framework.Is_initialized():
        framework.COMM_WORLD = _attached(framework.COMM_WORLD, compare=_all_ranks_record())
        return
    for name in ("Init", "Init_thread"):
        setattr(framework, name, _then_install(getattr(framework, name), framework))


def _all_ranks_record() -> bool:
    """Return whether every rank surely records: a rank that does not would leave the others blocked.

    That is so where one `tracelens record` is around the launcher. Inside it each rank has one, or not.
    """
    return ALL_RANKS_VARIABLE in os.environ


def _attached(comm: MPI.Intracomm, *, compare: bool) -> MPI.Intracomm:
    if not recorder.active() or recorder.detail() == "step":
        return comm
    return attempt(_attach, comm, compare=compare) or comm


def _attach(comm: MPI.Intracomm, *, compare: bool) -> MPI.Intracomm:
    already = known_communicator(comm)
    if already is not None:
        return already
    if comm == MPI.COMM_WORLD:
        recorder.identify(comm.rank, comm.size)
    ranks = global_ranks(comm)
    if compare:
        attempt(compare_clocks, comm, ranks)
    name = comm.name or f"MPI communicator of {comm.size}"
    found = record_communicator(comm, name)
    requests.install()
    note_attached(f"{name} with {comm.size} ranks")
    return found


def _then_install(original: Callable[..., Any], framework: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        install(framework)
        return result

    return initialize
