"""What a write in the background costs that fits into the pauses a trace shows, and one twice as large.

Two ranks train a network with DistributedDataParallel, each on a pretend host behind a slow link, so
that a step has long pauses in which gradients are under way. After each update a process beside the rank
writes a file, as a checkpoint of the weights would be, and has to be done before the next update changes
them; it runs only while its core is idle (SCHED_IDLE). How much is announced: what `tracelens` finds
usable of a step, of a run recorded before, times what such a process writes in so much time of its own
beside this training. Then blocks of steps without a write, with an eighth of what was announced, all of
it, and twice as much take turns in one run, in random order. A ratio of a round is one sample; the
interval is as in ddp_overhead.py.

Run, as root: make bench NAME=background [PUBLISH=1] [ARGS="--rounds 20"]
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from benchmarks.ddp_overhead import interval
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE: Final = "studies.md"
SCRIPT: Final = "tests/benchmarks/background_write.py"
EXAMPLES: Final = Path(__file__).parents[2] / "instrument" / "examples"
HOSTS: Final = 2
RATE: Final = "100mbit"
WIDTH, LAYERS, BATCH = 384, 3, 256  # of the network, and rows a step
RECORDED: Final = 60  # steps of the run that is asked
STEPS: Final = 4  # a block
WARM_UP: Final = 2  # rounds
PIECE: Final = 1 << 16  # bytes a call: short ones, as the kernel gives a core back between calls
PIECES: Final = 1024  # of a file, which is written again and again, so that no disk is waited for
TRIED: Final = 1 << 28  # bytes a step, to find out how fast a writer is
ARMS: Final = {
    "none": 0.0,
    "an eighth": 0.125,
    "announced": 1.0,
    "twice": 2.0,
}  # of it
MIB: Final = 1 << 20


class Writer:
    """A process that writes a file while its core is idle."""

    def __init__(self, core: int, folder: Path) -> None:
        forked = multiprocessing.get_context("fork")
        self._begin, self._done = forked.Semaphore(0), forked.Semaphore(0)
        self._pieces = forked.Value("q", 0)
        self._written, self._worked_ns = forked.Value("q", 0), forked.Value("q", 0)
        self._under_way = False
        beside = forked.Process(target=self._serve, args=(core, folder / f"{core}"), daemon=True)
        beside.start()

    def write(self, nbytes: int) -> None:
        """Let so many bytes be written, whole pieces."""
        self._pieces.value = round(nbytes / PIECE)
        self._under_way = nbytes > 0
        if self._under_way:
            self._begin.release()

    def finish(self) -> None:
        """Wait until what was begun is written."""
        if self._under_way:
            self._done.acquire()
            self._under_way = False

    @property
    def pace(self) -> float:
        """How many bytes it has written in a nanosecond of its work."""
        return float(self._written.value * PIECE / self._worked_ns.value)

    def _serve(self, core: int, file: Path) -> None:
        only_where_idle(core)
        weights = os.urandom(PIECE)
        place = os.open(file, os.O_CREAT | os.O_WRONLY)
        while self._begin.acquire():
            for piece in range(self._pieces.value):
                os.pwrite(place, weights, piece % PIECES * PIECE)
            self._written.value += self._pieces.value
            self._worked_ns.value = time.process_time_ns()
            self._done.release()


def only_where_idle(core: int) -> None:
    """Give the calling process one core, as long as no other wants it."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class Training:
    """A network whose gradients take longer to be exchanged than to be computed."""

    def __init__(self, rank: int, writer: Writer) -> None:
        self._torch: Any = importlib.import_module("torch")
        nn = self._torch.nn
        self._torch.manual_seed(0)
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        parallel = nn.parallel.DistributedDataParallel
        self._model = parallel(nn.Sequential(*layers), bucket_cap_mb=1)
        self._optimizer = self._torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._rows = self._torch.randn(
            BATCH, WIDTH, generator=self._torch.Generator().manual_seed(rank)
        )
        self._writer = writer
        self._step = 0
        tl.attach(self._model, optimizer=self._optimizer)

    def block(self, steps: int, nbytes: int) -> float:
        """Train some steps, after each of which so much is written; return seconds a step."""
        begin = time.perf_counter()
        for _ in range(steps):
            with tl.step(self._step):
                self._model(self._rows).square().mean().backward()
                self._writer.finish()
                self._optimizer.step()
                self._writer.write(nbytes)
                self._optimizer.zero_grad()
            self._step += 1
        self._writer.finish()
        return (time.perf_counter() - begin) / steps


def rank_main(given: argparse.Namespace) -> None:
    """Be a rank: train to be asked, or measure; rank 0 writes what was measured."""
    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, {rank})
    writer = Writer(rank, given.folder)
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(rank, writer)
    if given.announced is None:
        training.block(RECORDED, 0)
        tl.stop()
        training.block(RECORDED, TRIED)
        (given.folder / f"pace-{rank}.json").write_text(json.dumps(writer.pace))
    else:
        times = list(_rounds(training, given.rounds, given.announced))
        gathered: list[Any] = [None] * HOSTS
        dist.all_gather_object(gathered, times)
        if rank == 0:
            (given.folder / "times.json").write_text(json.dumps(gathered))
    dist.barrier()
    tl.stop()
    dist.destroy_process_group()


def _rounds(training: Training, rounds: int, announced: int) -> Iterable[list[float]]:
    draw = random.Random(0)
    for number in range(WARM_UP + rounds):
        order = draw.sample(list(ARMS), len(ARMS))
        taken = {arm: training.block(STEPS, round(ARMS[arm] * announced)) for arm in order}
        if number >= WARM_UP:
            yield [taken[arm] for arm in ARMS]


def launched(folder: Path, *options: str) -> None:
    """Run the ranks, each on a host of its own."""
    hosts = (str(EXAMPLES / "pretend_hosts.py"), "--hosts", str(HOSTS), "--rate", RATE, "--")
    mine = (sys.executable, __file__, "--folder", str(folder), *options)
    environment = os.environ | {"TRACELENS_DIR": str(folder / "trace"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *hosts, *mine], env=environment, check=True)


def usable_ns(trace: tl.Trace) -> int:
    """Return what a step leaves for work in the background, of the rank with least."""
    return int(tl.analyze(trace).tables["background"]["usable_ns"].to_numpy().min())


def report(times: Any, announced: int, usable: int) -> str:
    """Return a table; `times` is ranks x rounds x arms, seconds a step."""
    usual = float(np.median(times[..., 0]))
    rows = []
    for arm, (name, factor) in enumerate(ARMS.items()):
        ratios = np.log(times[..., arm] / times[..., 0]).mean(axis=0)
        mean, low, high = (100 * float(np.expm1(value)) for value in interval(ratios))
        longer = f"{mean:+.2f} % ({low:+.2f} to {high:+.2f})" if factor else ""
        each = float(np.median(times[..., arm]))
        rows.append((name, f"{factor * announced / MIB:.0f} MiB", f"{1e3 * each:.1f} ms", longer))
    title = (
        f"A write beside each of {HOSTS} ranks of DDP behind {RATE} links, {times.shape[1]} rounds of "
        f"{STEPS} steps an arm: {usable / 1e6:.1f} ms of {1e3 * usual:.1f} ms are usable"
    )
    head = ("write", "a step and rank", "a step, median", "longer (95 %)")
    return table(title, head, rows)


def main() -> int:
    """Ask a run, then measure; or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="of a rank: where all lies")
    parser.add_argument("--announced", type=int, help="of a rank: bytes to write")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    given = parse_quick(parser, rounds=1)
    if "RANK" in os.environ:
        rank_main(given)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launched(folder)
        usable = usable_ns(tl.open(folder / "trace"))
        pace = min(json.loads(one.read_text()) for one in folder.glob("pace-*.json"))
        announced = round(usable * pace / PIECE) * PIECE
        sys.stderr.write(f"{announced / MIB:.0f} MiB a step and rank are announced\n")
        (folder / "trace").rename(folder / "asked")
        launched(folder, f"--rounds={given.rounds}", f"--announced={announced}")
        text = report(np.array(json.loads((folder / "times.json").read_text())), announced, usable)
    sys.stdout.write(f"{text}\n")
    if given.publish:
        publish(PAGE, SCRIPT, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
