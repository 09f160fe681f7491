"""A process that records what it is told, line by line, and answers when that is done."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from support.launch.recording import clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM: Final = """
import sys
import tracelens as tl
from tracelens_instrument import recorder
tl.start(sys.argv[1], rank=int(sys.argv[2]), world=int(sys.argv[3]))
group = recorder.communicator(list(range(int(sys.argv[3]))), "world")
reduce = tl.span("all_reduce", kind="reduction", op="allreduce", communicator=group)
gather = tl.span("all_gather", kind="reduction", op="all_gather", communicator=group)
work, save = tl.span("work"), tl.span("save", kind="checkpoint")
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Commanded:
    """A recording process; `tell` returns when it has executed a line of Python."""

    def __init__(self, folder: Path, rank: int = 0, world: int = 1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(rank), str(world)],
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("ready")

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self._expect("done")

    def end(self) -> int:
        """Let it end by itself; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait()

    def _expect(self, answer: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == answer


@contextmanager
def commanded(folder: Path, rank: int = 0, world: int = 1) -> Iterator[Commanded]:
    """Yield a recording process, which is killed at the end if it still runs."""
    process = Commanded(folder, rank, world)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
        for pipe in (process.process.stdin, process.process.stdout):
            if pipe is not None:
                pipe.close()
