"""The same trace gets the same report each time, however many threads polars shares the work between."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.labelled.kinds import KINDS
from benchmarks.labelled.setting import setting
from support.turns import select_turn

PROGRAM = """
import sys
import tracelens as tl
from tracelens.reports import to_json
for _ in range(int(sys.argv[2])):
    print(to_json.render(tl.analyze(tl.open(sys.argv[1]))), end="\\0")
"""
SEED = 3_000_001


def reports(folder: Path, threads: int, times: int) -> list[str]:
    """Open a run several times in one process and return the reports."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, str(times)],
        env=os.environ | {"POLARS_MAX_THREADS": str(threads)},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("name", "steps", "times"),
    [
        ("PS incast", 20, 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in select_turn(
                (("PS healthy", 20, 1), ("PS healthy", 100, 2), ("PS incast", 100, 2))
            )
        ),
    ],
)
def test_requests_that_tell_as_much(tmp_path: Path, name: str, steps: int, times: int) -> None:
    """Clocks are tied by the tightest requests, also if several are equally tight."""
    (kind,) = (kind for kind in KINDS if kind.name == name)
    run = replace(setting(8, "harsh", "lognormal", SEED), steps=steps)
    kind.make(run).recording.write(tmp_path)
    printed = [*reports(tmp_path, 1, times), *reports(tmp_path, 2, times)]
    assert len(printed) == 2 * times
    assert len(set(printed)) == 1
