"""What reading profiles takes: events a second, memory beside the file, and CPU beside HTA's.

A file of the size that is asked for is made of a real one's events, or, without `--sample`, of the
profile in tests/data, again and again at later times. Reading it is measured in a process of its own,
less what importing takes. With `--hta`, HTA answers its three questions on a folder of ranks
(`analyzers/of_hta.py`), and `tracelens analyze` writes the whole report of the same folder; in turns,
ratios within a round.

Run: PYTHONPATH=.:tests python tests/benchmarks/kineto.py [--sample FILE] [--size BYTES] [--hta PYTHON]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.scaling.bounds import spread
from benchmarks.scaling.cost import GIB, Cost, measured
from benchmarks.scaling.runs import same_imports

OF_HTA: Final = Path(__file__).parent / "analyzers/of_hta.py"
SAMPLE: Final = Path(__file__).parents[1] / "data/kineto/two_ranks/rank0.pt.trace.json.gz"
RANKS: Final = 2
LATER_US: Final = 1_000_000.0
READ: Final = """
import sys
from pathlib import Path
from tracelens.readers.kineto import KinetoReader
if len(sys.argv) > 1:
    trace = KinetoReader().read(Path(sys.argv[1]))
    print(trace.recognition.found[0][1])
"""


def grow(sample: Path, size: int, file: Path, rank: int) -> int:
    """Write a profile of at least so many bytes; return how many events it has."""
    whole: dict[str, Any] = json.loads(gzip.decompress(sample.read_bytes()))
    events = whole.pop("traceEvents")
    whole["distributedInfo"] = whole.get("distributedInfo", {}) | {
        "rank": rank,
        "world_size": RANKS,
    }
    count = round_ = 0
    with file.open("w", encoding="utf-8") as out:
        out.write(json.dumps(whole)[:-1] + ', "traceEvents": [\n')
        while out.tell() < size:
            for event in events:
                shift = LATER_US * round_
                moved = event | ({"ts": event["ts"] + shift} if "ts" in event else {})
                out.write((",\n" if count else "") + json.dumps(moved, indent=1))
                count += 1
            round_ += 1
        out.write("\n]}")
    return count


def read_once(command: list[str], folder: Path) -> Cost:
    return measured(command, folder / "out", environment=same_imports())


def reading(sample: Path, size: int, rounds: int, folder: Path) -> str:
    """Measure reading one file; return what it came to."""
    file = folder / "rank0.json"
    events = grow(sample, size, file, 0)
    python = [sys.executable, "-c", READ]
    rates, peaks = [], []
    for _ in range(rounds):
        start = read_once(python, folder)
        whole = read_once([*python, str(file)], folder)
        rates.append(events / (whole.cpu - start.cpu))
        peaks.append(whole.peak)
    bytes_ = file.stat().st_size
    file.unlink()
    return (
        f"reading {events:,} events, {bytes_ / GIB:.2f} GiB: {spread(rates)} events per CPU second; "
        f"peak {spread([peak / GIB for peak in peaks])} GiB, "
        f"{spread([peak / bytes_ for peak in peaks])} x the file"
    )


def beside_hta(sample: Path, size: int, hta: Path, rounds: int, folder: Path) -> str:
    """Measure HTA and ours from JSON to the answer; return the ratios."""
    ranks = folder / "ranks"
    ranks.mkdir()
    for rank in range(RANKS):
        grow(sample, size, ranks / f"rank{rank}.json", rank)
        packed = gzip.compress((ranks / f"rank{rank}.json").read_bytes(), 1)
        (ranks / f"rank{rank}.json.gz").write_bytes(packed)
        (ranks / f"rank{rank}.json").unlink()
    cpu, memory = [], []
    for _ in range(rounds):
        theirs = read_once([str(hta), str(OF_HTA), str(ranks)], folder)
        ours = read_once([sys.executable, "-m", "tracelens", "analyze", "--no-keep", str(ranks)], folder)
        cpu.append(theirs.cpu / ours.cpu)
        memory.append(ours.peak / theirs.peak)
        sys.stdout.write(f"HTA  {theirs}\nours {ours}\n")
    return f"HTA's CPU over ours {spread(cpu)}; our memory over HTA's {spread(memory)}"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sample", type=Path, default=SAMPLE, help="a profile (.json.gz)")
    parser.add_argument(
        "--size", type=int, default=256 << 20, help="bytes of the file that is read"
    )
    parser.add_argument("--hta", type=Path, help="the Python that HTA is installed for")
    parser.add_argument("--hta-size", type=int, default=32 << 20, help="bytes a rank for HTA")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sys.stdout.write(reading(given.sample, given.size, given.rounds, folder) + "\n")
        if given.hta:
            text = beside_hta(given.sample, given.hta_size, given.hta, given.rounds, folder)
            sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
