"""Recordings for tests: what a trace folder holds, and children that record by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from support.launch.patience import PATIENCE_S

import tracelens as tl
from tracelens.conversion.segments import decode
from tracelens.schema.side import SideTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Recorded:
    """One process's part of a trace folder."""

    path: Path
    table: pa.Table
    side: SideTables

    @cached_property
    def frame(self) -> pl.DataFrame:
        found = pl.from_arrow(self.table)
        assert isinstance(found, pl.DataFrame)
        return found

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["name"] == name]

    def one(self, name: str) -> dict[str, Any]:
        (event,) = self.named(name)
        return event


def read(path: Path) -> Recorded:
    """Read one process, converted or not."""
    if path.is_dir():
        return Recorded(path, *decode(path))
    table = pa.ipc.open_file(str(path)).read_all()
    return Recorded(path, table, SideTables.from_metadata(table.schema.metadata))


def recorded(folder: Path, command: Sequence[str]) -> tl.Trace:
    """Record a command as a user does, and open what it left."""
    run_command(
        [
            str(Path(sys.executable).with_name("tracelens")),
            *("record", "--no-verdict", "--out", str(folder), "--", *command),
        ],
        {"OMP_NUM_THREADS": "1"},
    )
    return tl.open(folder)


def read_all(folder: Path) -> list[Recorded]:
    """Read all processes of a trace folder, in the order of their names."""
    found = sorted([*folder.glob("*.arrow"), *folder.glob("*.segments")])
    return [read(path) for path in found]


def read_one(folder: Path) -> Recorded:
    """Read the only process of a trace folder."""
    (recorded,) = read_all(folder)
    return recorded


def clean_environment(**variables: str) -> dict[str, str]:
    """Return this environment without anything that tells a rank, plus `variables`.

    Which recorder is wanted stays, so that all tests can be run with either.
    """
    foreign = ("TRACELENS_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "PMI", "OMPI_", "SLURM_", "MPI_")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) or name == "TRACELENS_NATIVE"
    }
    return inherited | variables


def run_command(
    command: Sequence[object],
    variables: Mapping[str, str] | None = None,
    *,
    exit_code: int | None = 0,
    cwd: Path | str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a clean environment plus `variables`; fail on any other exit code.

    `exit_code` None accepts every exit code.
    """
    done = subprocess.run(
        [*map(str, command)],
        env=clean_environment(**variables or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert exit_code in {None, done.returncode}, done.stderr
    return done


def run_child(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, in a clean environment, and wait for it."""
    return run_command(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], variables
    )
