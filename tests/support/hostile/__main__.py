"""`python -m support.hostile`: try inputs by their numbers, and say how many failed and how."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from support.hostile.processes import in_new_folder, load_program, name_of
from support.hostile.registry import FORMATS


def main() -> int:
    """Try the inputs that were asked for; exit code 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m support.hostile", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--inputs", type=int, default=20_000, help="how many")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which none begins")
    parser.add_argument("--only", choices=FORMATS, help="inputs of one format")
    parser.add_argument("--replay", type=int, nargs="+", help="these inputs, and no others")
    parser.add_argument("--out", type=Path, default=Path(".fuzz"), help="where failures are kept")
    arguments = parser.parse_args()
    os.nice(10)
    load_program()
    arguments.out.mkdir(parents=True, exist_ok=True)
    numbers = arguments.replay or range(arguments.first, arguments.first + arguments.inputs)
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    began, tried_count = time.monotonic(), 0
    with (arguments.out / "tried.jsonl").open("a") as log:
        for number in numbers:
            if arguments.only and name_of(number) != arguments.only:
                continue
            if time.monotonic() - began > 60 * arguments.minutes:
                break
            outcome = in_new_folder(number, arguments.out / "failing")
            log.write(json.dumps(asdict(outcome)) + "\n")
            log.flush()
            tried_count += 1
            codes[str(outcome.code)] += 1
            if outcome.failure:
                kinds[outcome.failure] += 1
                sys.stdout.write(f"{number} {outcome.form} [{outcome.verb}]: {outcome.failure}\n")
                sys.stdout.flush()
    sys.stdout.write(
        f"{tried_count} inputs, exit codes {dict(codes)}, {sum(kinds.values())} failures\n"
    )
    for kind, count in kinds.most_common():
        sys.stdout.write(f"{count:6} {kind}\n")
    return int(bool(kinds))


if __name__ == "__main__":
    sys.exit(main())
