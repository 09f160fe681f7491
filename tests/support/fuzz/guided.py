"""The same judge under atheris: which inputs reach new lines of readers decides what is changed next.

Each call changes an input by the changes that know its structure, or as libFuzzer does. A crash, a limit
or a failure ends the process; the input is then in .fuzz/failing.

Run: make fuzz ARGS=--guided, which starts this for each kind of file
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
FAILING: Final = ROOT / ".fuzz/failing"
MOST_BYTES: Final = 1 << 17
MEMORY_MIB: Final = 2048
SECONDS: Final = 60  # of one input; CPU is counted by the machine's clock here
WATCHED: Final = (
    "tracelens.readers",
    "tracelens.conversion",
    "tracelens.schema",
    "tracelens.distil",
)
READERS: Final = (
    "native.reader",
    "table.reader",
    "kineto.reader",
    "nsight.reader",
    "flight_recorder.reader",
    "dftracer.reader",
    "otf2.reader",
    "xplane",
    "perfetto.reader",
    "horovod",
    "viztracer",
    "stacks.reader",
    "otlp",
    "nccl_inspector",
    "rocprof",
    "exported_events",
)


def main() -> None:
    """Run until so many inputs are done; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subject", metavar="KIND")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        sys.exit("atheris is not installed here, so inputs are not chosen by coverage")
    with atheris.instrument_imports(
        include=list(WATCHED)
    ):  # nothing watched may be imported before
        for reader in READERS:
            importlib.import_module(f"tracelens.readers.{reader}")
        judging = importlib.import_module("support.fuzz.judge")
        subjects = importlib.import_module("support.fuzz.subjects")
    subject = subjects.SUBJECTS[asked.subject]
    folder = Path(tempfile.mkdtemp())
    corpus = folder / "corpus"
    corpus.mkdir()
    sound = subjects.bases(subject)
    for number, content in enumerate(sound):
        (corpus / str(number)).write_bytes(content)
    judge, count = judging.Judge(subject, folder), 0

    def test(data: bytes) -> None:
        nonlocal count
        count += 1
        judge.look(data, count)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        luck = random.Random(seed)
        if luck.random() < 0.5:
            changed: bytes = atheris.Mutate(data, most)
            return changed
        return bytes(subject.change(luck.choice(sound), luck)[:most])

    FAILING.mkdir(parents=True, exist_ok=True)
    os.environ["RUST_BACKTRACE"] = "0"
    atheris.Setup(
        [
            sys.argv[0],
            f"-runs={asked.inputs}",
            f"-seed={asked.seed}",
            f"-max_len={MOST_BYTES}",
            f"-rss_limit_mb={MEMORY_MIB}",
            f"-timeout={SECONDS}",
            f"-artifact_prefix={FAILING}/{subject.name}-",
            str(corpus),
        ],
        test,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
