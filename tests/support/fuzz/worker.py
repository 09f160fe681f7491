"""A process that judges many inputs, within limits of memory and processor time, and may be killed.

Which input it is at stands in a file that whoever started it reads, should it die; a line of JSON on
standard output says what failed, the last one how many became what.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from support.fuzz.judge import Failure, Judge, changed
from support.fuzz.subjects import SUBJECTS, bases

__all__ = ["CPU_S", "MEMORY", "PROGRESS", "limit_cpu", "limit_memory"]

CPU_S: Final = 10  # of one input
MEMORY: Final = 1 << 30  # bytes that reading may take beside what is there without a file
PROGRESS: Final = struct.Struct("@q")


def limit_memory() -> None:
    """Allow so much more address space than there is in use."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def limit_cpu() -> None:
    """Allow so many seconds from now on; beyond, the process is killed."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    spent = usage.ru_utime + usage.ru_stime
    resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + CPU_S + 1, resource.RLIM_INFINITY))


def main(name: str, seed: int, first: int, count: int, progress: Path) -> None:
    """Judge `count` inputs from number `first` on."""
    subject, became = SUBJECTS[name], Counter[str]()
    sound = bases(subject)
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, progress.open("r+b") as file:
        at = mmap.mmap(file.fileno(), PROGRESS.size)
        judge = Judge(subject, Path(folder))
        for number in range(2):  # so that all that is imported is, before memory is limited
            judge.look(sound[0], number)
        gc.freeze()
        limit_memory()
        os.dup2(os.open(f"{folder}/errors", os.O_RDWR | os.O_CREAT | os.O_APPEND), 2)
        for number in range(first, first + count):
            PROGRESS.pack_into(at, 0, number)
            data = changed(subject, seed, number, sound)
            limit_cpu()
            try:
                became[judge.look(data, number)] += 1
            except Failure as failure:
                became["failed"] += 1
                _print({"number": number, "failure": str(failure)})
        os.chdir(home)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _print({"became": became, "cpu_s": time.process_time(), "peak_kib": usage.ru_maxrss})


def _print(row: object) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        name, *numbers, place = sys.argv[1:]
        seed, first, count = map(int, numbers)
        main(name, seed, first, count, Path(place))
