"""Where a process may not have more files, descriptors, memory or processes, the training goes on."""

from pathlib import Path

import pytest
from support.launch.harmless import both_recorders, harmless
from support.launch.recording import read_all

pytestmark = pytest.mark.end_to_end

LIMITED = """
import resource, signal

def case(name, limit, most, during=False, free_bytes=None):
    print(name, flush=True)
    sys.stderr.write(f"case {name}\\n")
    before = resource.getrlimit(limit)
    def set_limit():
        resource.setrlimit(limit, (most(), before[1]))
        return [] if free_bytes is None else use_up_memory(free_bytes)
    if not during: ballast = set_limit()
    if RECORDS: tl.start(f"{FOLDER}/{name}")
    train()
    if during: ballast = set_limit()
    train(steps=12, spans=1500)
    del ballast
    resource.setrlimit(limit, before)
    tl.stop()

def use_up_memory(free_bytes):
    blocks = []
    for size in (1 << 16, 1 << 12, 400, 100):
        try:
            while True: blocks.append(bytearray(size))
        except MemoryError:
            pass
    while free_bytes > 0: free_bytes -= len(blocks.pop())
    return blocks

def open_now():
    return max(map(int, os.listdir("/proc/self/fd"))) + 1

def mapped_now():
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * 4096 + (1 << 19)

"""

OF_FILES = {
    "no files": "resource.RLIMIT_FSIZE, lambda: 0",
    "no files later": "resource.RLIMIT_FSIZE, lambda: 100, during=True",
    "small files": "resource.RLIMIT_FSIZE, lambda: 1 << 17",
    "no descriptors": "resource.RLIMIT_NOFILE, lambda: 3",
    "few descriptors": "resource.RLIMIT_NOFILE, lambda: open_now() + 3",
    "no more descriptors": "resource.RLIMIT_NOFILE, open_now, during=True",
    "no descriptors later": "resource.RLIMIT_NOFILE, lambda: 0, during=True",
}
OF_MEMORY = {
    "no memory": "resource.RLIMIT_AS, mapped_now",
    "no more memory": "resource.RLIMIT_AS, mapped_now, during=True",
}
# Whatever else is in the process, so many bytes can still be allocated, in small pieces.
FREE_BYTES = [0, 30_000, 100_000, 200_000, 210_000, 220_000, 240_000, 300_000]
OF_MEMORY_USED_UP = {
    f"memory used up but {free_bytes}{', later' if during else ''}": (
        f"resource.RLIMIT_AS, mapped_now, {during}, {free_bytes}"
    )
    for free_bytes in FREE_BYTES
    for during in (False, True)
}
# What is full is given back meanwhile, so that these may have enough.
MAY_HAVE_ENOUGH = {"no more descriptors"} | OF_MEMORY.keys() | OF_MEMORY_USED_UP.keys()


FATAL = "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"


@both_recorders
@pytest.mark.slow
def test_one_warning_for_a_limit(tmp_path: Path, recorder: str) -> None:
    """Whatever is kept, the rest is counted; so, too, where SIGXFSZ would end the program."""
    names = ("no files later", "few descriptors")
    check({name: OF_FILES[name] for name in names}, tmp_path, recorder, FATAL)


@both_recorders
@pytest.mark.slow
@pytest.mark.parametrize("first", ["", FATAL], ids=["ignored", "fatal"])
def test_one_warning_for_each_limit(tmp_path: Path, recorder: str, first: str) -> None:
    check(OF_FILES, tmp_path, recorder, first)


@both_recorders
@pytest.mark.limits_memory
def test_one_warning_where_memory_ends(tmp_path: Path, recorder: str) -> None:
    """At most one, since the present segments may suffice; lost events are counted."""
    check(OF_MEMORY, tmp_path, recorder)


@both_recorders
@pytest.mark.limits_memory
def test_one_warning_where_memory_is_used_up(tmp_path: Path, recorder: str) -> None:
    """Wherever the first allocation fails, in what is recorded or in what warns of it."""
    for name, case in OF_MEMORY_USED_UP.items():
        check({name: case}, tmp_path, recorder)


def check(cases: dict[str, str], folder: Path, recorder: str, first: str = "") -> None:
    program = "\n".join(f"case({name!r}, {how})" for name, how in cases.items())
    ran = harmless(LIMITED + first + program, folder, recorder, starts=False)
    errors_by_case = {part.partition("\n")[0]: part for part in ran.errors.split("case ")[1:]}
    for name in cases:
        expected = {0, 1} if name in MAY_HAVE_ENOUGH else {1}
        assert errors_by_case[name].count("TraceLens: ") in expected, ran.errors
    told = {name: told_of(folder / name) for name in cases}
    assert {name for name, events in told.items() if events} >= ALWAYS_TOLD & cases.keys()
    for name, counts in told.items():
        # Without memory the preparations may fail, too, and count as an event.
        most_events = EVENTS + (name not in OF_FILES)
        assert all(EVENTS <= count <= most_events for count in counts), told


def told_of(trace: Path) -> list[int]:
    """Return the number of events that a recording kept or counted; none without a recording."""
    return [len(one.events) + sum(one.side.dropped.values()) for one in read_all(trace)]


# Of a step: itself and its samples, the spans of `train`, and a span, a counter and an instant.
EVENTS = 20 * (2 + 5 + 3) + 12 * (2 + 1500 + 3)
ALWAYS_TOLD = {name for name, how in (OF_FILES | OF_MEMORY).items() if "during" in how} | {
    "small files"
}


AT_THE_END = """
import resource
train()
resource.setrlimit(resource.RLIMIT_AS, (MIB << 20, MIB << 20))
"""


@both_recorders
@pytest.mark.limits_memory
@pytest.mark.parametrize("mebibytes", [pytest.param(120, marks=pytest.mark.slow), 200])
def test_little_memory_at_the_end(tmp_path: Path, recorder: str, mebibytes: int) -> None:
    """If memory does not suffice for Arrow, the records stay whole and readable."""
    harmless(AT_THE_END.replace("MIB", str(mebibytes)), tmp_path, recorder)
    (recorded,) = read_all(tmp_path / "trace")
    assert len(recorded.named("compute")) == 120
    assert recorded.side.complete
