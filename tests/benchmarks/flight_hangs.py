"""How often the root of a real hang is named from its Flight Recorder dumps.

Four gloo ranks of a mixture of experts hang (`support.launch.hanging`): one of them sleeps, is stopped,
raises, keeps the GIL, waits for a key, never enters anything, makes another call or skips one, or two
wait for each other in two groups. A hang is right if its ranks are named exactly, and nobody else; a
mismatch is false where all ranks made the same calls. At least 38 of 40 must be right.

Run: make bench NAME=flight-hangs [PUBLISH=1] [ARGS="--each 4"]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from support.launch.hanging import FAULTS, Hang, choose_hang, perform

import tracelens as tl

SCRIPT: Final = "tests/benchmarks/flight_hangs.py"
PAGE: Final = "formats.md"
MIN_SHARE_RIGHT: Final = 0.95
WITH_MISMATCH: Final = ("desync", "skip")


def judge(hang: Hang, dumps: Path) -> tuple[bool, bool]:
    """Return whether the roots of a hang are named exactly, and whether a mismatch is told falsely."""
    report = tl.analyze(tl.open(dumps))
    reported = [finding for finding in report.findings if finding.kind in {"hang", "desync"}]
    is_right = (
        bool(reported) and report.verdict.state == "fault" and reported[0].ranks == hang.roots
    )
    is_right &= all(set(finding.ranks) <= set(hang.roots) for finding in reported)
    mismatches = [finding for finding in reported if finding.kind == "desync"]
    return is_right, bool(mismatches) and hang.fault not in WITH_MISMATCH


def main() -> int:
    """Make the hangs, judge them, and print the table; 1 if too few are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--each", type=int, default=4, help="hangs of each fault")
    parser.add_argument("--keep", type=Path, help="keep the dumps here")
    parser.add_argument("--publish", action="store_true", help=f"write the table into docs/{PAGE}")
    options = parse_quick(parser, each=1)
    right: Counter[str] = Counter()
    false: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        hangs = [choose_hang(fault, seed) for fault in FAULTS for seed in range(options.each)]
        made = [perform(hang, folder / f"{place:03}") for place, hang in enumerate(hangs)]
        for hang, dumps in zip(hangs, made, strict=True):
            is_right, is_false = judge(hang, dumps)
            right[hang.fault] += is_right
            false[hang.fault] += is_false
            if is_false or not is_right:
                sys.stderr.write(f"wrong: {hang} in {dumps}\n")
    rows = [(f, str(options.each), str(right[f]), str(false[f])) for f in FAULTS]
    total = (str(len(hangs)), str(right.total()), str(false.total()))
    text = table(
        f"{len(hangs)} hangs of a mixture of experts, 4 gloo ranks",
        ("fault", "hangs", "root exact", "false mismatch"),
        [*rows, ("all", *total)],
    )
    sys.stdout.write(f"{text}\n")
    if options.publish:
        publish(PAGE, SCRIPT, text)
    return int(right.total() < MIN_SHARE_RIGHT * len(hangs) or false.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
