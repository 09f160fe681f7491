"""Who is recording: rank, world and role, from arguments, launcher, or the parent process.

What the caller gives wins; then what the launcher set; then what a hook learned from its framework.
A process that was spawned by a recording one and has no rank of its own belongs to its parent's.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass, replace

from tracelens.schema.host import allowed_cores, clock_domain, core_quota, host_name, process_age_ns
from tracelens.schema.json_text import dumps, loads
from tracelens.schema.launchers import read_launcher
from tracelens.schema.side import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

__all__ = [
    "PARENT_VARIABLE",
    "Identity",
    "describe_process",
    "identify",
    "read_launcher",
    "with_hook_values",
]

PARENT_VARIABLE: Final = "TRACELENS_PARENT"

_JOBS: Final = ("TRACELENS_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_VERSIONED: Final = ("tracelens", "torch", "mpi4py", "numpy")


@dataclass(frozen=True)
class Identity:
    """Who a process is in its job.

    `parent_pid` is that of the recording process whose child it is. `launcher` is (rank, world) as
    the launcher said, if one did; `rank_known` that its rank is known, by launcher, caller or parent.
    """

    role: str = "worker"
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    job: str = ""
    shard: int | None = None
    parent_pid: int | None = None
    launcher: tuple[int, int] | None = None
    rank_known: bool = False

    def encode_for_children(self, pid: int) -> str:
        """Return the mark by which children, or another program in this process, know their parent."""
        return dumps(asdict(self) | {"parent_pid": pid, "above": self.parent_pid})


def identify(
    arguments: Mapping[str, Any],
    hook_values: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> Identity:
    """Determine rank, world and role: by the caller, else by the environment, else by hooks.

    The keys of `arguments` and `hook_values` are fields of `Identity`; None does not count.
    """
    overrides = {key: value for key, value in arguments.items() if value is not None}
    environment_identity = _identity_from_launcher(environment)
    if "rank" in overrides:  # a process that is given a rank is no child of another
        environment_identity = replace(environment_identity, rank_known=True)
    else:
        parent_identity = _identity_from_parent(environment, environment_identity.launcher)
        environment_identity = parent_identity or environment_identity
    identity = replace(with_hook_values(environment_identity, hook_values), **overrides)
    return replace(identity, world=max(identity.world, identity.rank + 1))


def with_hook_values(identity: Identity, hook_values: Mapping[str, Any]) -> Identity:
    """Add what a hook learned from its framework, where the rank is not known otherwise."""
    values = {key: value for key, value in hook_values.items() if value is not None}
    if identity.rank_known or not values:
        return identity
    return replace(identity, parent_pid=None, **values)


def describe_process(identity: Identity) -> Process:
    """Describe this process for the side file; its incarnation is the Unix time now, ns."""
    now_ns = time.time_ns()
    age_ns = process_age_ns(os.getpid())
    return Process(
        role=identity.role,
        rank=identity.rank,
        world=identity.world,
        local_rank=identity.local_rank,
        host=host_name(),
        clock_domain=clock_domain(),
        pid=os.getpid(),
        parent_pid=os.getppid(),
        parent_rank_pid=identity.parent_pid,
        incarnation=now_ns,
        job=identity.job,
        shard=identity.shard,
        cores=allowed_cores(),
        core_quota=core_quota(),
        started_ns=None if age_ns is None else now_ns - age_ns,
        versions=_versions(),
    )


def _identity_from_launcher(environment: Mapping[str, str]) -> Identity:
    """Return the identity that the launcher set; without one, rank 0 of 1, not known for sure."""
    job = next((environment[name] for name in _JOBS if environment.get(name)), "")
    launcher = read_launcher(environment)
    if launcher is None:
        return Identity(job=job)
    rank, world, local_rank = launcher
    return Identity("worker", rank, world, local_rank, job, launcher=launcher[:2], rank_known=True)


def _identity_from_parent(
    environment: Mapping[str, str], own_launcher: tuple[int, int] | None
) -> Identity | None:
    """Return the identity that a recording parent left in the environment; None without one.

    None also if `own_launcher`, (rank, world), differs: another launcher has started this process since.
    """
    mark = environment.get(PARENT_VARIABLE)
    if not mark:
        return None
    try:
        fields = loads(mark)
        grandparent_pid = fields.pop("above")
        parent_launcher = tuple(fields["launcher"]) if fields["launcher"] else None
        identity = Identity(**fields | {"launcher": parent_launcher})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if identity.parent_pid == os.getpid():  # an earlier program in this process, before `exec`
        identity = replace(identity, parent_pid=grandparent_pid)
    is_usable = parent_launcher == own_launcher and isinstance(identity.parent_pid, int)
    return identity if is_usable else None


def _versions() -> dict[str, str]:
    """Return versions of loaded packages; import nothing for it."""
    versions = {"python": sys.version.partition(" ")[0]}
    for name in _VERSIONED:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions
