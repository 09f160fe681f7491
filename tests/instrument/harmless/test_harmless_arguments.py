"""Everything that the recorder offers may be called with anything, recording or not."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.launch import absurd
from support.launch.harmless import both_recorders, harmless
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment, read_one

pytestmark = pytest.mark.end_to_end

ANALYZER = ["Report", "Trace", "__version__", "analyze", "open", "whatif"]


@both_recorders
@pytest.mark.parametrize("examples", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_anything_may_be_handed_in(tmp_path: Path, recorder: str, examples: int) -> None:
    """Nothing raises but what says so when a handle is made or recording begins, in one sentence."""
    environment: Mapping[str, str] = clean_environment(TRACELENS_NATIVE=recorder)
    done = subprocess.run(
        [sys.executable, absurd.__file__, str(examples)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == f"not called: {ANALYZER}\ndone\n"
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "trace").glob("*.arrow"))


RANGES = """
import math
NAMES = "nbytes seq bucket peer key request queue_depth micro_step step".split()
BIG = (2**31, 2**63, 2**64, -2**63 - 1, 10**400, -1, math.nan, math.inf, "5", None, [], object())
for value in BIG:
    for name in NAMES:
        with SPAN(**{name: value}):
            pass
    with tl.step(value, samples=value, tokens=value):
        SPAN.complete(value, value)
        SPAN.complete(1, value)
    tl.counter("number", value)
train()
"""


@both_recorders
def test_values_out_of_range(tmp_path: Path, recorder: str) -> None:
    """They are left out and counted, and all else is kept."""
    ran = harmless(RANGES, tmp_path, recorder)
    assert ran.warned == []
    recorded = read_one(tmp_path / "trace")
    names = recorded.frame["name"].to_list()
    assert names.count("step") == 12 + 20
    assert names.count("compute") >= 12 * 9 + 120
    assert set(recorded.side.dropped) == {"value out of range"}
