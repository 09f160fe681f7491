"""What recording costs a whole DDP program: starts of it without a tool, under TraceLens, under TraceML.

In each round the program of `ddp_overhead.py` (two ranks on gloo, a small network) is started once
each way, in random order: plainly, by `tracelens record`, and, with a step marked, by `traceml run`.
After 20 steps it measures 100: CPU time of all threads of a rank, and wall time. A ratio to the plain
start of the same round is one sample; given are trimmed means with 95 % intervals from a bootstrap of
rounds. Two starts of one program differ by a per cent or more, recorded or not, so that this says less
than blocks of steps in one run do, but it asks nothing of our own code. The C library keeps its memory,
as there.

Run: make bench NAME=ddp-starts [PUBLISH=1] [ARGS="--rounds N"]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from benchmarks.ddp_overhead import EXAMPLES, KEPT, interval
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.verdicts import traceml_command
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE: Final = "benchmarks.md"
SCRIPT: Final = "tests/benchmarks/ddp_starts.py"
ARMS: Final = ("plain", "TraceLens", "TraceML")
RANKS, WARM_UP, BATCH = 2, 20, 32


def rank_main(found: Path, steps: int, *, marked: bool) -> None:
    """Be a rank: train, and write what each of `steps` steps took, those to warm up left out."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    sys.path.insert(0, str(EXAMPLES))
    example: Any = importlib.import_module("ddp_cnn")
    nothing = importlib.import_module("faults").Faults(-1, "", (0, 0), 0.0, -1, -1)
    traceml: Any = importlib.import_module("traceml_ai") if marked else None
    if marked:
        traceml.init(mode="auto")
    rank = dist.get_rank()
    network = example.Network(rank, nothing)
    model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    images = example.Images(WARM_UP + steps, rank, nothing)

    def step() -> AbstractContextManager[Any]:
        return traceml.trace_step(model) if marked else nullcontext()

    cpu = wall = 0.0
    for number, (batch, labels) in enumerate(torch.utils.data.DataLoader(images, batch_size=BATCH)):
        if number == WARM_UP:
            cpu, wall = time.process_time(), time.perf_counter()
        with step():
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    taken = (time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps
    (found / f"{rank}.json").write_text(json.dumps(taken))
    dist.barrier()
    dist.destroy_process_group()


def start_program(arm: str, steps: int, traceml: Path, folder: Path) -> list[float]:
    """Start the program one way; return CPU and wall time a step, the mean of its ranks.

    Raises:
        RuntimeError: it failed; with the last line of its errors.
    """
    folder.mkdir()
    script, script_arguments = Path(__file__), ["--found", folder, f"--steps={steps}"]
    command = torchrun_command(script, RANKS, script_arguments)
    if arm == "TraceLens":
        record = ("-m", "tracelens", "record", "--no-verdict", "--out", str(folder / "t"), "--")
        command = [sys.executable, *record, *command]
    elif arm == "TraceML":
        command = traceml_command(traceml, script, RANKS, folder, [*script_arguments, "--marked"])
    paths = os.pathsep.join(map(str, (Path(__file__).parents[1], Path(__file__).parents[2])))
    environment = clean_environment(OMP_NUM_THREADS="1", PYTHONPATH=paths) | KEPT
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{arm} failed: {done.stderr.strip().splitlines()[-1:]}")
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return [float(value) for value in np.mean(ranks, axis=0)]


def one_round(
    arms: Sequence[str], steps: int, traceml: Path, folder: Path
) -> dict[str, list[float]]:
    """Start the program each way once, in random order."""
    order = random.sample(arms, len(arms))
    return {arm: start_program(arm, steps, traceml, folder / arm) for arm in order}


def report(times_by_arm: dict[str, list[list[float]]], steps: int) -> str:
    """Return the table: each way of starting beside the plain start of its round."""
    plain = np.array(times_by_arm["plain"])
    rows: list[tuple[str, ...]] = []
    for arm in ARMS[1:]:
        if not times_by_arm[arm]:
            rows.append((arm, "not installed", "", "", ""))
            continue
        ratios = np.log(np.array(times_by_arm[arm]) / plain)
        cells = []
        for which in (0, 1):
            mean, low, high = (100 * np.expm1(value) for value in interval(ratios[:, which], 1))
            ms = 1e3 * float(np.median(plain[:, which]))
            cells += [f"{mean:+.1f} % ({low:+.1f} to {high:+.1f})", f"{10 * ms * mean:+.0f} us"]
        rows.append((arm, *cells))
    medians = 1e3 * np.median(plain, axis=0)
    title = (
        f"{len(plain)} rounds of starts, {RANKS} ranks, {steps} steps of {medians[0]:.1f} ms of CPU "
        f"and {medians[1]:.1f} ms of wall time"
    )
    return table(title, ("", "CPU (95 %)", "CPU a step", "wall (95 %)", "wall a step"), rows)


def main() -> int:
    """Start the program again and again, or be a rank of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100, help="of each start")
    parser.add_argument("--traceml", type=Path, default=Path("traceml"), help="its command")
    parser.add_argument("--found", type=Path, help="be a rank, and write there what steps took")
    parser.add_argument("--marked", action="store_true", help="mark steps as TraceML asks for")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    arguments = parse_quick(parser, rounds=1, steps=5)
    if arguments.found:
        rank_main(arguments.found, arguments.steps, marked=arguments.marked)
        return 0
    arms = ARMS if shutil.which(arguments.traceml) else ARMS[:2]
    times_by_arm: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            round_folder = Path(folder) / str(number)
            round_folder.mkdir()
            try:
                round_times = one_round(arms, arguments.steps, arguments.traceml, round_folder)
            except RuntimeError as error:  # gloo does not always come up
                sys.stderr.write(f"round {number} is left out: {error}\n")
                continue
            for arm, values in round_times.items():
                times_by_arm[arm].append(values)
    if not times_by_arm["plain"]:
        sys.exit("Every round was left out: there is nothing to report")
    text = report(times_by_arm, arguments.steps)
    sys.stdout.write(f"{text}\n")
    if arguments.publish:
        publish(PAGE, SCRIPT, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
