"""Real hangs of a mixture of experts: four gloo ranks in several groups, and what they dump of them.

A process that has imported torch forks the ranks, which takes a second or two for a hang. What a rank
sends to the experts is uneven, so sizes of `all_to_all` differ. A rank that is stopped, or whose thread
keeps the GIL, writes no dump.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"

import torch
import torch._inductor.codecache  # which every dump looks up frames in: imported once, for all ranks
import torch.distributed as dist
from torch._C import _distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS: Final = 4
PAIRS: Final = ((0, 1), (2, 3))  # ranks that share a batch
EXPERTS: Final = ((0, 2), (1, 3))  # ranks that hold the same experts
WIDTH: Final = 64  # numbers of a tensor that all ranks have alike
STEP_S: Final = 0.003
SETTLE_S: Final = 0.7  # if no rank enters a call for so long, all wait
PATIENCE_S: Final = 30.0
WITHOUT_DUMP: Final = ("stop", "gil")
FAULTS: Final = (
    *("sleep", "uneven", "raise", "store", "never", "stop", "gil"),
    *("desync", "skip", "order", "deadlock"),
)
# The calls of a step by what they are made on; a fault comes instead of one of these, or before it.
CALLS: Final = ("dispatch", "expert", "combine", "pair", "lane", "world", "pair_gather", "gather")
OF_ALL: Final = ("dispatch", "combine", "world", "gather")


@dataclass(frozen=True)
class Hang:
    """A fault of a rank, in a step and at a call; `as_json` says how dumps are written."""

    fault: str
    culprit: int
    step: int
    call: str
    as_json: bool

    @property
    def roots(self) -> tuple[int, ...]:
        """The ranks that are to blame: of a deadlock both that wait for each other."""
        if self.fault != "deadlock":
            return (self.culprit,)
        return next(pair for pair in PAIRS if self.culprit in pair)


def choose_hang(fault: str, seed: int) -> Hang:
    """Choose rank, step and call of a hang at random; of a mismatch of two ranks nobody is right."""
    luck = random.Random(f"{fault} {seed}")
    calls = {
        "desync": OF_ALL,
        "order": OF_ALL,
        "uneven": ("dispatch", "combine"),
        "deadlock": ("pair",),
    }
    return Hang(
        fault=fault,
        culprit=luck.randrange(RANKS),
        step=0 if fault == "never" else luck.randrange(2, 12),
        call="dispatch" if fault == "never" else luck.choice(calls.get(fault, CALLS)),
        as_json=luck.random() < 0.5,
    )


def perform(hang: Hang, folder: Path) -> Path:
    """Make a hang and return the folder with the dumps of its ranks."""
    dumps = folder / "dumps"
    dumps.mkdir(parents=True)
    progress = mmap.mmap(-1, RANKS)  # calls that each rank entered, a byte each
    ranks = [_fork(rank, hang, folder, progress) for rank in range(RANKS)]
    try:
        _wait_for((folder / "fault").exists)
        _wait_until_still(progress)
        (folder / "dump").touch()
        expected = RANKS - (hang.fault in WITHOUT_DUMP)
        _wait_for(lambda: len(list(dumps.iterdir())) >= expected)
    finally:
        for process in ranks:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return dumps


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the ranks of a hang did not come as far as they should")
        time.sleep(0.02)


def _wait_until_still(progress: mmap.mmap) -> None:
    """Wait until no rank has entered a call for a while."""
    seen = b""
    while progress[:] != seen:
        seen = progress[:]
        time.sleep(SETTLE_S)


def _fork(rank: int, hang: Hang, folder: Path, progress: mmap.mmap) -> int:
    process = os.fork()
    if process:
        return process
    try:
        log = os.open(folder / f"log_{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        threading.Thread(target=_dump, args=(rank, hang, folder), daemon=True).start()
        _Training(rank, hang, folder, progress).run()
    except BaseException as error:  # noqa: BLE001 - as a program whose threads outlive its exception
        sys.stderr.write(f"{error!r}\n")
        sys.stderr.flush()
    threading.Event().wait()
    return 0


def _dump(rank: int, hang: Hang, folder: Path) -> None:
    """Write the dump of a rank when it is asked for."""
    while not (folder / "dump").exists():
        time.sleep(0.01)
    kind, suffix = ("_dump_fr_trace_json", ".json") if hang.as_json else ("_dump_fr_trace", "")
    part = folder / f"part_{rank}"
    part.write_bytes(getattr(_distributed_c10d, kind)())
    part.rename(folder / "dumps" / f"trace_rank_{rank}{suffix}")


class _Training:
    """One rank: its groups, its calls, and the fault."""

    def __init__(self, rank: int, hang: Hang, folder: Path, progress: mmap.mmap) -> None:
        self.rank, self.hang, self.folder, self.progress = rank, hang, folder, progress
        address = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
        self.pair = self._join(PAIRS)
        self.lane = self._join(PAIRS)
        self.expert = self._join(EXPERTS)

    def _join(self, partition: tuple[tuple[int, ...], ...]) -> Any:
        groups = [(ranks, dist.new_group(list(ranks))) for ranks in partition]
        return next(group for ranks, group in groups if self.rank in ranks)

    def run(self) -> None:
        """Make the calls of all steps."""
        step = 0
        while True:
            calls = self._calls(step)
            for name in CALLS:
                self.progress[self.rank] = (self.progress[self.rank] + 1) % 256
                if (step, name) == (self.hang.step, self.hang.call):
                    self._fail(name, calls)
                else:
                    calls[name]()
            time.sleep(STEP_S)
            step += 1

    def _calls(self, step: int) -> dict[str, Callable[[], Any]]:
        luck = random.Random(step)
        sent = [[luck.randrange(1, 50) for _ in range(RANKS)] for _ in range(RANKS)]
        own_counts, received_counts = sent[self.rank], [row[self.rank] for row in sent]
        tensor = torch.ones(WIDTH)
        gathered = [torch.zeros(WIDTH) for _ in range(RANKS)] if self.rank == 0 else None
        halves = [torch.zeros(WIDTH), torch.zeros(WIDTH)]
        return {
            "dispatch": partial(_exchange, received_counts, own_counts),
            "expert": partial(dist.all_reduce, tensor, group=self.expert),
            "combine": partial(_exchange, own_counts, received_counts),
            "pair": partial(dist.all_reduce, tensor, group=self.pair),
            "lane": partial(dist.all_reduce, tensor, group=self.lane),
            "world": partial(dist.all_reduce, tensor),
            "pair_gather": partial(dist.all_gather, halves, tensor, group=self.pair),
            "gather": partial(dist.gather, tensor, gathered),
        }

    def _fail(self, name: str, calls: dict[str, Callable[[], Any]]) -> None:
        """Make the fault, where it is this rank's."""
        if self.rank != self.hang.culprit:
            calls[name]()
            return
        (self.folder / "fault").touch()
        if self.hang.fault == "desync":
            wrong = "gather" if name == "world" else "world"
            calls[wrong]()
        elif self.hang.fault == "order":
            dist.barrier(group=self.pair)
            calls[name]()
        elif self.hang.fault == "deadlock":
            calls["lane"]()
            calls[name]()
        elif self.hang.fault != "skip":
            _stay_away(self.hang.fault)


def _exchange(received: list[int], sent: list[int]) -> None:
    given = torch.ones(sum(sent))
    dist.all_to_all_single(torch.zeros(sum(received)), given, received, sent)


def _stay_away(fault: str) -> None:
    """Keep this rank from its next call for good."""
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "gil":
        ctypes.PyDLL(None).sleep(3600)
    elif fault == "raise":
        raise RuntimeError("out of samples")
    elif fault == "store":
        dist.distributed_c10d._get_default_store().get("never set")
    time.sleep(3600)
