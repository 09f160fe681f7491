"""What regions of an OTF2 archive mean: calls of MPI, phases of training, waiting, or code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.readers.words import kernel_meaning, meaning, normal, step_number

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["COLLECTIVES", "on_streams", "region_table"]

# By the numbers of OTF2's CollectiveOp; others (scans, creating handles) are of no operation of ours.
COLLECTIVES: Final = {
    0: "barrier", 1: "broadcast", 2: "gather", 3: "gather", 4: "scatter", 5: "scatter",
    6: "all_gather", 7: "all_gather", 8: "all_to_all", 9: "all_to_all", 10: "all_to_all",
    11: "allreduce", 12: "reduce", 13: "reduce_scatter", 16: "reduce_scatter",
}  # fmt: skip
_PHASES: Final = ("step", "data", "forward", "backprop", "update", "checkpoint")
_SENDS: Final = ("mpisend", "mpibsend", "mpissend", "mpirsend")
_RECEIVES: Final = ("mpirecv", "mpimrecv", "mpisendrecv", "mpisendrecvreplace")
_WAITS: Final = ("mpiwait", "mpiwaitall", "mpiwaitany", "mpiwaitsome")
_WAITING_ROLES: Final = ("BARRIER", "IMPLICIT_BARRIER", "TASK_WAIT", "THREAD_WAIT")
_ROLES_OF_COLLECTIVES: Final = ("COLL_ONE2ALL", "COLL_ALL2ONE", "COLL_ALL2ALL", "BARRIER")
_DEVICES: Final = ("CUDA", "HIP", "OPENCL")
_SYNCHRONIZES: Final = ("synchronize", "finish", "waitforevents")
Meaning = tuple[str, str | None, int | None]  # kind, operation, number of the step


def region_table(regions: Iterable[tuple[int, str, str, str]]) -> pl.DataFrame:
    """Return what each region means: columns region, name, kind, op, step.

    Args:
        regions: Number, name, paradigm and role of each, in OTF2's words.
    """
    rows = [
        (number, name, *_meaning(name, paradigm, role)) for number, name, paradigm, role in regions
    ]
    schema = {"region": pl.Int64, "name": pl.String, "kind": pl.String, "op": pl.String}
    table = pl.DataFrame(rows, schema=schema | {"step": pl.Int32}, orient="row")
    return table.unique("region", keep="first")


def on_streams(regions: pl.DataFrame) -> pl.DataFrame:
    """Return what the same regions mean where a device ran them: kernels."""
    found = {name: kernel_meaning(name) or ("device", None) for name in regions["name"].unique()}
    rows = [(name, *known) for name, known in found.items()]
    schema = {"name": pl.String, "kind": pl.String, "op": pl.String}
    kernels = pl.DataFrame(rows, schema=schema, orient="row")
    return regions.select("region", "name").join(kernels, on="name", how="left")


def _meaning(name: str, paradigm: str, role: str) -> Meaning:
    if paradigm == "MPI":
        return _of_mpi(name, role)
    if role in _WAITING_ROLES:
        return "wait", None, None
    if paradigm in _DEVICES and normal(name).endswith(_SYNCHRONIZES):
        return "wait", None, None
    if paradigm == "USER":
        return _of_user(name)
    return "user", None, None


def _of_mpi(name: str, role: str) -> Meaning:
    word = normal(name)
    if word in _WAITS:
        return "wait", "request_wait", None
    if word in _SENDS:
        return "reduction", "send", None
    if word in _RECEIVES:
        return "reduction", "recv", None
    found = meaning(name)
    blocks = role in _ROLES_OF_COLLECTIVES and not word.startswith("mpii")
    if blocks and found and found[0] == "reduction":
        return "reduction", found[1], None
    return "wait", None, None  # inside MPI, which is nobody's own work


def _of_user(name: str) -> Meaning:
    number = step_number(name)
    if number is not None:
        return "step", None, number
    found = meaning(name)
    if found and found[0] in _PHASES and found[1] is None:
        return found[0], None, None
    return "user", None, None
