"""What reading profiles takes: events a second, memory beside the file, and CPU beside HTA's.

A file of the size that is asked for is made of a real one's events, or, without `--sample`, of the
profile in tests/data, again and again at later times. Reading it is measured in a process of its own,
less what importing takes. With `--hta`, HTA answers its three questions on a folder of ranks
(`analyzers/of_hta.py`), and `tracelens analyze` writes the whole report of the same folder, of which it
keeps nothing; in turns, ratios within a round. Seconds are this machine's: beside them stands what
orjson takes to parse the same file whole.

Run: make bench NAME=kineto [PUBLISH=1] [SAMPLE=FILE] [ARGS=--large]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.published import publish
from benchmarks.quick import parse_quick
from benchmarks.scaling.bounds import Bound, Section, machine, write_spread
from benchmarks.scaling.cost import GIB, Cost, measure_command
from benchmarks.scaling.runs import same_imports

OF_HTA: Final = Path(__file__).parent / "analyzers/of_hta.py"
SAMPLE: Final = Path(__file__).parents[1] / "data/kineto/two_ranks/rank0.pt.trace.json.gz"
SCRIPT: Final = "tests/benchmarks/kineto.py"
PAGE: Final = "kineto.md"
RANKS: Final = 2
LARGE_BYTES: Final = 2 << 30
RATE: Final = Bound("read", 200_000, "events a CPU second", at_least=True)
MEMORY: Final = Bound("memory of the process", 2.0, "x the file")
LARGE: Final = Bound("memory of the process, a file of 2 GiB", 4.0, "GiB")
CPU: Final = Bound("CPU time of HTA over ours", 4.0, "x", at_least=True)
LESS: Final = Bound("our memory", 0.65, "x HTA's")
LATER_US: Final = 1_000_000.0
READ: Final = """
import sys
from pathlib import Path
from tracelens.readers.kineto import KinetoReader
if len(sys.argv) > 1:
    trace = KinetoReader().read(Path(sys.argv[1]))
    print(trace.recognition.facts[0][1])
"""


def grow(sample: Path, size: int, file: Path, rank: int) -> int:
    """Write a profile of at least so many bytes; return how many events it has."""
    document: dict[str, Any] = json.loads(gzip.decompress(sample.read_bytes()))
    events = document.pop("traceEvents")
    document["distributedInfo"] = document.get("distributedInfo", {}) | {
        "rank": rank,
        "world_size": RANKS,
    }
    count = round_ = 0
    with file.open("w", encoding="utf-8") as out:
        out.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
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
    return measure_command(command, folder / "out", environment=same_imports())


PARSE: Final = "import sys, orjson; orjson.loads(open(sys.argv[1], 'rb').read())"


def reading(sample: Path, size: int, rounds: int, folder: Path) -> Section:
    """Measure reading one file."""
    file = folder / "rank0.json"
    events = grow(sample, size, file, 0)
    bytes_ = file.stat().st_size
    python = [sys.executable, "-c", READ]
    rates, peaks, parsing = [], [], []
    for _ in range(rounds):
        start = read_once(python, folder)
        cost = read_once([*python, str(file)], folder)
        parsed = read_once([sys.executable, "-c", PARSE, str(file)], folder)
        sys.stdout.write(f"read {cost}\nparsed {parsed}\n")
        rates.append(events / (cost.cpu - start.cpu))
        peaks.append(cost.peak / bytes_)
        parsing.append((cost.cpu - start.cpu) / parsed.cpu)
    file.unlink()
    section = Section(f"Reading a file, {events:,} events, {bytes_ / GIB:.2f} GiB")
    section.judge(RATE, rates, judged=True)
    section.judge(MEMORY, peaks, judged=True)
    section.texts.append(
        f"Reading, without the start of the process, takes {write_spread(parsing)} times the CPU time "
        "of a process that starts and parses the whole file with orjson."
    )
    return section


def large(sample: Path, folder: Path) -> Section:
    """Measure the memory that a large file takes."""
    file = folder / "rank0.json"
    events = grow(sample, LARGE_BYTES, file, 0)
    cost = read_once([sys.executable, "-c", READ, str(file)], folder)
    file.unlink()
    section = Section(f"A large file, {events:,} events")
    section.judge(LARGE, [cost.peak / GIB], judged=True)
    section.texts.append(f"Reading it took {cost.cpu:.0f} s of CPU.")
    return section


def beside_hta(sample: Path, size: int, hta: Path, rounds: int, folder: Path) -> Section:
    """Measure HTA and ours from JSON to the answer."""
    ranks = folder / "ranks"
    ranks.mkdir()
    events = 0
    for rank in range(RANKS):
        events += grow(sample, size, ranks / f"rank{rank}.json", rank)
        packed = gzip.compress((ranks / f"rank{rank}.json").read_bytes(), 1)
        (ranks / f"rank{rank}.json.gz").write_bytes(packed)
        (ranks / f"rank{rank}.json").unlink()
    report = [sys.executable, "-m", "tracelens", "analyze", "--no-keep", str(ranks)]
    hta_costs: list[Cost] = []
    own_costs: list[Cost] = []
    for _ in range(rounds):
        hta_costs.append(read_once([str(hta), str(OF_HTA), str(ranks)], folder))
        own_costs.append(read_once(report, folder))
        sys.stdout.write(f"HTA  {hta_costs[-1]}\nours {own_costs[-1]}\n")
    pairs = [*zip(hta_costs, own_costs, strict=True)]
    section = Section(f"From JSON to the verdict beside HTA, {RANKS} ranks, {events:,} events")
    section.judge(CPU, [one.cpu / other.cpu for one, other in pairs], judged=True)
    section.judge(LESS, [other.peak / one.peak for one, other in pairs], judged=True)
    return section


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
    parser.add_argument("--large", action="store_true", help="also a file of 2 GiB: some minutes")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    options = parse_quick(parser, size=1 << 20, hta_size=1 << 20, rounds=1)
    machine_words = machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = [reading(options.sample, options.size, options.rounds, folder)]
        if options.large:
            tables.append(large(options.sample, folder))
        if options.hta:
            tables.append(
                beside_hta(options.sample, options.hta_size, options.hta, options.rounds, folder)
            )
    from_ = f"The files repeat the events of {options.sample.name}. Measured on {machine_words}."
    text = "\n\n".join([*(section.markdown() for section in tables), from_])
    sys.stdout.write(text + "\n")
    if options.publish:
        publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()
