"""What `tracelens whatif` predicts from a run, beside the run in which it was really done.

Each program is recorded as it is; of this first run the prediction is made, and written down, before the
other one is run for the first time. Then both run in turns, always in fresh processes. Three ranks sleep
where they would work, so that they share no core (two over MPI, whose ranks poll while they wait); with
a network, they are on pretend hosts, and talk over gloo.
The true saving is the difference of the median mean steps; the error is that of the prediction of the
first run, as a share of the true saving. Where nothing is changed it is a share of the step.

Run: make bench NAME=whatif [PUBLISH=1] [ARGS="--rounds 2 --only sleep --kept DIR"]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.verdicts import DDP, MPI, PROGRAMS, RANKS
from support.launch.mpi import launch
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command
from support.samples import EXAMPLES

import tracelens as tl
from tracelens.accounting import phases
from tracelens.errors import InvalidArgument
from tracelens.replay.event_graph import EventGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT: Final = "tests/benchmarks/interventions.py"
PAGE: Final = "whatif.md"
ROUNDS: Final = 5
CORES: Final = (
    2  # ranks of MPI poll while they wait: more of them than cores would hold each other up
)
LAUNCH: Final = Path(__file__).parents[1] / "support" / "launch"
GLOO: Final = PROGRAMS / "layered_gloo.py"
_PYTHON: Final = sys.executable


def _mpi(fault: str) -> tuple[str, ...]:
    return (*launch(MPI, CORES), fault, "phases", "90")


def _ddp(fault: str) -> tuple[str, ...]:
    return tuple(torchrun_command(DDP, RANKS, [fault, "--steps=60"]))


def _gloo(*options: str) -> tuple[str, ...]:
    return tuple(torchrun_command(GLOO, RANKS, options))


def _grpc(*options: str) -> tuple[str, ...]:
    script = EXAMPLES / "grpc_parameter_server.py"
    return (_PYTHON, str(script), "--hidden=96", f"--workers={RANKS}", "--steps=40", *options)


def _slow(phase: str, *options: str) -> tuple[str, ...]:
    return _grpc("--slow-rank=1", f"--slow-phase={phase}", "--slow-ms=60", *options)


def _network(rate: str, *options: str) -> tuple[str, ...]:
    hosts = (str(EXAMPLES / "pretend_hosts.py"), "--hosts", str(RANKS), "--rate", rate, "--")
    return (_PYTHON, *hosts, _PYTHON, str(GLOO), *options)


def _shaped(*options: str) -> tuple[str, ...]:
    links = (str(LAUNCH / "shaped_links.py"), "100mbit", "2")
    script = (_PYTHON, str(EXAMPLES / "grpc_parameter_server.py"), "--own-addresses")
    size = ("--workers=2", "--shards=2", "--steps=40", "--hidden=256", "--layers=2")
    return (_PYTHON, *links, *script, *size, *options)


@dataclass(frozen=True)
class Intervention:
    """A program before and after, and the edits that say the same."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    edits: tuple[str, ...]


_MANY: Final = ("--steps=30", "--repeats=4")
INTERVENTIONS: Final = (
    Intervention("gRPC: a sleep removed", _slow("backprop"), _grpc(), ("rank:1=median",)),
    Intervention(
        "gRPC: loader's sleep removed", _slow("data"), _grpc(), ("rank:1,phase:data=median",)
    ),
    Intervention(
        "gRPC: one in half of the steps removed",
        _slow("backprop", "--slow-steps=20:39"),
        _grpc(),
        ("rank:1=median",),
    ),
    Intervention("gRPC: no barrier", _grpc(), _grpc("--mode=async"), ("async=on",)),
    Intervention(
        "gRPC: no barrier, with stalls",
        _slow("backprop", "--slow-steps=20:39"),
        _slow("backprop", "--slow-steps=20:39", "--mode=async"),
        ("async=on",),
    ),
    Intervention("gRPC: nothing changed", _grpc(), _grpc(), ("rank:1=median",)),
    Intervention("gloo: a sleep removed", _gloo("--late-ms=60"), _gloo(), ("rank:1=median",)),
    Intervention(
        "gloo: stalls removed",
        _gloo("--late-ms=300", "--late-every=5"),
        _gloo(),
        ("rank:1=median",),
    ),
    Intervention(
        "gloo: loaders twice as fast",
        _gloo("--data-ms=80"),
        _gloo("--data-ms=40"),
        ("phase:data/2",),
    ),
    Intervention("DDP: loader's sleep removed", _ddp("loader"), _ddp("none"), ("rank:1=median",)),
    Intervention("DDP: backward's removed", _ddp("backward"), _ddp("none"), ("rank:1=median",)),
    Intervention("MPI: 40 ms removed", _mpi("apart"), _mpi("none"), ("rank:1=median",)),
    Intervention(
        "network: messages joined",
        _network("100mbit", *_MANY),
        _network("100mbit", *_MANY, "--fuse=131072"),
        (
            "buckets=249856B",
        ),  # what the program has then: five sizes, until they are 128 KiB or more
    ),
    Intervention(
        "network: twice the bandwidth",
        _network("50mbit", *_MANY),
        _network("100mbit", *_MANY),
        ("bandwidth*2",),
    ),
    Intervention(
        "shaped links: variables moved, in chunks",
        _shaped("--placement=round_robin"),
        _shaped("--placement=chunked"),
        ("placement=chunked",),
    ),
    Intervention("gloo: nothing changed", _gloo(), _gloo(), ("rank:1=median",)),
)


def recorded(folder: Path, command: Sequence[str]) -> tl.Trace:
    """Record a command as a user does, unless that was done before."""
    if not folder.exists():  # under its name when it is whole: the next call goes on from there
        unfinished = folder.with_name(f"{folder.name}, begun")
        shutil.rmtree(unfinished, ignore_errors=True)
        tracelens = str(Path(sys.executable).with_name("tracelens"))
        done = subprocess.run(
            [tracelens, "record", "--no-verdict", "--out", str(unfinished), "--", *command],
            env=clean_environment(OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
        unfinished.rename(folder)
    return tl.open(folder)


def mean_step(trace: tl.Trace) -> float:
    """Return how long a step is on average, nanoseconds, without the first one (it starts things up)."""
    graph = EventGraph.from_trace(trace, phases.run(trace))
    if graph is None:
        raise ValueError("no steps were found")
    return float(graph.measure_steps_ns(graph.recorded_times_ns)[1:].mean())


def predicted(trace: tl.Trace, edits: Sequence[str], path: Path) -> dict[str, Any]:
    """Return what is said of a run before, written down when it is said for the first time."""
    if not path.exists():
        (answer,) = tl.whatif(trace, *edits).answers
        said = {"saving_ns": answer.before_ns - answer.after_ns, "interval": answer.interval}
        path.write_text(json.dumps(said | {"before_ns": answer.before_ns}))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def measure_intervention(change: Intervention, rounds: int, folder: Path) -> tuple[str, ...]:
    """Predict, then run both in turns; return a row of the table."""
    before_ns: list[float] = []
    after_ns: list[float] = []
    forecasts: list[dict[str, Any]] = []
    for turn in range(rounds):
        trace = recorded(folder / f"{turn} before {change.name}", change.before)
        forecasts.append(predicted(trace, change.edits, folder / f"{turn} {change.name}.json"))
        _say(
            f"{turn} {change.name}: {forecasts[-1]['saving_ns'] / 1e6:+.2f} ms a step are predicted"
        )
        before_ns.append(mean_step(trace))
        after_ns.append(mean_step(recorded(folder / f"{turn} after {change.name}", change.after)))
        _say(f"{turn} {change.name}: {(before_ns[-1] - after_ns[-1]) / 1e6:+.2f} ms came of it")
    step_ns = median(before_ns)
    truth = step_ns - median(after_ns)
    gains_ns = [was - then for was, then in zip(before_ns, after_ns, strict=True)]
    base = step_ns if change.before == change.after else truth
    errors = [(float(row["saving_ns"]) - truth) / base for row in forecasts]
    return (
        change.name,
        " + ".join(f"`{edit}`" for edit in change.edits),
        f"{step_ns / 1e6:.1f} ms",
        f"{truth / 1e6:+.2f} ms ({min(gains_ns) / 1e6:+.2f} to {max(gains_ns) / 1e6:+.2f})",
        f"{float(forecasts[0]['saving_ns']) / 1e6:+.2f} ms",
        f"{errors[0]:+.1%}",
        f"{median(map(abs, errors)):.1%}",
    )


def row(change: Intervention, rounds: int, folder: Path) -> tuple[str, ...]:
    """Measure an intervention; where a run before cannot answer its edit, that is the row."""
    try:
        return measure_intervention(change, rounds, folder)
    except InvalidArgument as error:
        _say(f"{change.name}: {error}")
        edits = " + ".join(f"`{edit}`" for edit in change.edits)
        return change.name, edits, "", "", "refused", "", ""


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> None:
    """Run, print the table, publish it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="only those whose names hold this")
    parser.add_argument(
        "--kept", type=Path, help="keep recordings there, and go on with those there"
    )
    parser.add_argument("--publish", action="store_true", help=f"write the table of docs/{PAGE}")
    options = parse_quick(parser, rounds=1, only="MPI: 40 ms")
    changes = [change for change in INTERVENTIONS if options.only in change.name]
    with tempfile.TemporaryDirectory() as scratch:
        place = options.kept or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        rows = [row(change, options.rounds, place) for change in changes]
    changed = [
        abs(float(row[5].rstrip("%")))
        for change, row in zip(changes, rows, strict=True)
        if change.before != change.after and row[5]
    ]
    head = ("intervention", "edit", "step before", "true saving (pairs)", "predicted")
    title = "Predicted savings a step beside what came of it"
    if changed:
        title += f": median error {median(changed):.0f} % of the saving"
    errors = ("error of the first run", "of all runs, median")
    text = table(title, (*head, *errors), rows)
    sys.stdout.write(f"{text}\n")
    if options.publish:
        publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()
