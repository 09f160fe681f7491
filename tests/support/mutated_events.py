"""Trace events in JSON, damaged at random: each is read without a traceback, and no loss goes uncounted.

Bytes are changed, cut out, put in, or the file is cut off; or single members get values that nobody
expects. A file is read as its user would, the trace built and its rows counted.

Run: PYTHONPATH=.:tests python -m support.mutated_events [--inputs 20000] [--seed 0]
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import TraceLensError
from tracelens.readers.base import Reading
from tracelens.readers.kineto import KinetoReader
from tracelens.readers.kineto.columns import read_events

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["base_of", "check", "damaged"]

EVENTS: Final = 120
SLOW_S: Final = 20.0
_ODD: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 2**31, 2**63, 2**70, -(2**70), 1e300, 1e-300, float("inf"), float("nan"), "",
    "x" * 300, "\udcff", "12", [], [[]], {}, {"a": {"b": []}}, [1, 2, 3], "[0, 1, 2]", "[0, ..., 9]",
    "ProfilerStep#3",
)  # fmt: skip
_PIECES: Final = (*(bytes([byte]) for byte in b'{}[],":\\\x00\xff'), b"},\n  {", b"nan", b"]}")


def base_of(file: Path) -> bytes:
    """Return a small file of the same kind: the first events of each sort, and what is beside."""
    whole = json.loads(gzip.decompress(file.read_bytes()))
    events = whole["traceEvents"]
    chosen = [e for e in events if e.get("cat") in {"user_annotation", "kernel", "gpu_memcpy"}][:40]
    operators = [e for e in events if e.get("cat") in {"cpu_op", "cuda_runtime"}]
    chosen += operators[: EVENTS - 20 - len(chosen)]
    chosen += [e for e in events if e.get("ph") != "X"][:20]
    return json.dumps(whole | {"traceEvents": chosen}, indent=1).encode()


def damaged(base: bytes, random_: random.Random) -> bytes:
    """Return a file with one to four changes."""
    if random_.random() < 0.4:
        return _with_odd_values(base, random_)
    data = bytearray(base)
    for _ in range(random_.randint(1, 4)):
        random_.choice((_flip, _flip, _cut_out, _put_in, _cut_off, _repeat))(data, random_)
    return bytes(data)


def _flip(data: bytearray, random_: random.Random) -> None:
    if data:
        data[random_.randrange(len(data))] = random_.randrange(256)


def _cut_out(data: bytearray, random_: random.Random) -> None:
    begin = random_.randrange(len(data) + 1)
    del data[begin : begin + random_.randint(1, 200)]


def _put_in(data: bytearray, random_: random.Random) -> None:
    place = random_.randrange(len(data) + 1)
    data[place:place] = random_.choice(_PIECES)


def _cut_off(data: bytearray, random_: random.Random) -> None:
    del data[random_.randrange(len(data) + 1) :]


def _repeat(data: bytearray, random_: random.Random) -> None:
    begin = random_.randrange(len(data) + 1)
    part = data[begin : begin + random_.randint(1, 400)]
    place = random_.randrange(len(data) + 1)
    data[place:place] = part


def _with_odd_values(base: bytes, random_: random.Random) -> bytes:
    whole = json.loads(base)
    for _ in range(random_.randint(1, 6)):
        holder: Any = random_.choice((whole, *([random_.choice(whole["traceEvents"])] * 9)))
        while isinstance(holder, dict) and holder:
            key = random_.choice(list(holder))
            if isinstance(holder[key], dict) and random_.random() < 0.7:
                holder = holder[key]
                continue
            if key == "traceEvents":
                break
            if random_.random() < 0.2:
                del holder[key]
            else:
                holder[key] = random_.choice(_ODD)
            break
    return json.dumps(whole).encode("utf-8", "surrogatepass")


def check(data: bytes, file: Path, events: int) -> str:
    """Read damaged data; return what became of it.

    Raises:
        AssertionError: something was lost and not counted, or it took far too long.
        Exception: whatever the reader should not have raised.
    """
    file.write_bytes(data)
    begun = time.process_time()
    try:
        table = read_events(file)
    except TraceLensError:
        return "refused"
    assert table.events == table.rows.height + table.unusable + sum(table.left_out.values())
    whole = _parsed(data)
    if whole is not None:
        assert table.events == len(whole)
    elif data.count(b'"ph"') >= events:
        assert table.events + table.lost >= events - 4 or table.cut, (
            table.events,
            table.lost,
            events,
        )
    what = "damaged" if table.lost or table.unusable or table.cut else "whole"
    try:
        trace = KinetoReader().read(file, Reading(rank_of={file.name: 0}))
    except TraceLensError:
        return "refused"
    assert what == "whole" or trace.notes
    assert trace.events.collect().height <= table.rows.height * 2
    assert time.process_time() - begun < SLOW_S
    return what


def _parsed(data: bytes) -> list[Any] | None:
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return None
    events = whole.get("traceEvents") if isinstance(whole, dict) else whole
    return events if isinstance(events, list) and data.count(b'"traceEvents"') == 1 else None


def run(inputs: int, seed: int, bases: list[bytes], say: Callable[[str], object]) -> dict[str, int]:
    """Check so many inputs; return how many became what."""
    random_ = random.Random(seed)
    became: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for done in range(inputs):
            base = random_.choice(bases)
            state = random_.getstate()
            data = damaged(base, random_)
            try:
                what = check(
                    data, Path(folder) / "events.json", len(json.loads(base)["traceEvents"])
                )
            except BaseException:
                kept = Path(tempfile.gettempdir()) / f"mutated-{seed}-{done}.json"
                kept.write_bytes(data)
                say(f"input {done} of seed {seed} failed: {kept} ({len(state)})\n")
                raise
            became[what] = became.get(what, 0) + 1
    return became


def main() -> None:
    """Check many inputs, of a profile of a CPU and, where it is there, one of GPUs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("files", type=Path, nargs="+", help="profiles to damage (.json.gz)")
    given = parser.parse_args()
    became = run(
        given.inputs, given.seed, [base_of(file) for file in given.files], sys.stderr.write
    )
    sys.stdout.write(f"{sum(became.values()):,} inputs: {became}\n")


if __name__ == "__main__":
    main()
