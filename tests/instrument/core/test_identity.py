"""Who records: from arguments, from each launcher, from a hook, or from the parent, in this order."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import read_one

import tracelens as tl
from tracelens.schema.host import allowed_cores, core_quota
from tracelens_instrument import recorder
from tracelens_instrument.core.identity import Identity, identify

LAUNCHERS = {
    "torchrun": {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "TORCHELASTIC_RUN_ID": "job-7",
    },
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "TRACELENS_JOB": "job-7",
    },
    "MPICH": {
        "PMI_RANK": "5",
        "PMI_SIZE": "8",
        "MPI_LOCALRANKID": "1",
        "TRACELENS_JOB": "job-7",
    },
    "Slurm": {
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "8",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "job-7",
    },
}


def rank_world_local_job(who: Identity) -> tuple[int, int, int, str]:
    return who.rank, who.world, who.local_rank, who.job


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launchers_variables_give_the_rank(launcher: str) -> None:
    """Each launcher's variables give rank, world, local rank and job."""
    assert rank_world_local_job(identify({}, {}, LAUNCHERS[launcher])) == (5, 8, 1, "job-7")


def test_torchrun_inside_slurm() -> None:
    """The innermost launcher knows best: Slurm started one task, torchrun four ranks in it."""
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}
    who = identify({}, {}, LAUNCHERS["torchrun"] | slurm)
    assert (who.rank, who.world) == (5, 8)


def test_without_a_launcher_it_is_rank_0_of_1() -> None:
    """A process that runs by itself is rank 0 of 1."""
    assert identify({}, {}, {}) == Identity()


@pytest.mark.parametrize("text", ["", "five", "-1", "2.0"])
def test_variable_that_is_no_number(text: str) -> None:
    """Nonsense in a launcher's variable is as good as none."""
    assert identify({}, {}, {"RANK": text}).rank == 0


def test_arguments_win_over_the_launcher() -> None:
    """What the caller says is not overruled, and the rest comes from the launcher."""
    given = {"rank": 2, "role": "ps", "shard": 1, "world": None, "job": None}
    who = identify(given, {"rank": 7, "world": 9}, LAUNCHERS["torchrun"])
    assert (who.rank, who.world, who.role, who.shard, who.job) == (2, 8, "ps", 1, "job-7")


def test_world_holds_the_rank() -> None:
    """A rank without a world is in one that is large enough."""
    assert identify({"rank": 3}, {}, {}).world == 4


def test_hook_does_not_overrule_the_launcher() -> None:
    """What a hook learned counts only where nobody has said anything."""
    learned = {"rank": 1, "world": 2, "local_rank": None}
    assert identify({}, learned, LAUNCHERS["MPICH"]).rank == 5
    assert rank_world_local_job(identify({}, learned, {})) == (1, 2, 0, "")


def test_hook_may_come_late(trace: Path) -> None:
    """A recording that began before anybody knew the rank ends under the right one."""
    with tl.span("early"):
        pass
    recorder.identify(3, 4, local_rank=1)
    tl.stop()
    recorded = read_one(trace)
    who = recorded.side.process
    assert (who.rank, who.world, who.local_rank) == (3, 4, 1)
    assert recorded.path.name == f"worker-00003-{os.getpid()}.arrow"


def test_hook_does_not_overrule_start(tmp_path: Path) -> None:
    """Nor does it change what the caller of `start` had said."""
    tl.start(tmp_path, rank=2, world=3)
    recorder.identify(0, 1)
    tl.stop()
    assert read_one(tmp_path).side.process.rank == 2


def test_role_stays_when_the_rank_is_learned(tmp_path: Path) -> None:
    """A hook adds the rank and takes nothing away."""
    tl.start(tmp_path, role="ps", shard=2, job="mine")
    recorder.identify(3, 4)
    tl.stop()
    who = read_one(tmp_path).side.process
    assert (who.role, who.shard, who.job, who.rank) == ("ps", 2, "mine", 3)


def test_the_process_row_names_process_and_machine(trace: Path) -> None:
    """The side tables say which process on which machine it was."""
    tl.stop()
    process_row = read_one(trace).side.process
    assert (process_row.pid, process_row.parent_pid) == (os.getpid(), os.getppid())
    assert process_row.host == os.uname().nodename
    boot, _, namespace = process_row.clock_domain.partition("/")
    assert len(boot) == 36
    assert namespace.startswith("time:[")
    assert {"python", "tracelens"} <= set(process_row.versions)
    assert process_row.incarnation > 0
    assert process_row.cores == allowed_cores() is not None
    assert process_row.core_quota == core_quota()


@pytest.mark.parametrize("mark", ["", "nonsense", "[]", "{}", '{"launcher":null,"color":1}'])
def test_damaged_mark_of_a_parent(mark: str) -> None:
    """A mark that cannot be read is as good as none."""
    environment: dict[str, Any] = {"TRACELENS_PARENT": mark}
    assert identify({}, {}, environment) == Identity()
