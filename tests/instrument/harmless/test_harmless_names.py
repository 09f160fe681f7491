"""Names may be many, long and strange: past a limit they are recorded as one, and counted."""

from pathlib import Path

import polars as pl
import pytest
from support.launch.harmless import both_recorders, harmless
from support.launch.recording import read_one

from tracelens_instrument.core import registry

pytestmark = pytest.mark.end_to_end

MANY = """
from tracelens_instrument import recorder
from tracelens_instrument.core import registry
registry.MOST_NAMES = recorder.MOST_NAMES = 2000
registry.LAST_THREAD = recorder.LAST_THREAD = 500
for number in range(registry.MOST_NAMES + 1000):
    tl.instant(f"name {number}", kind="data")
for number in range(500):
    with tl.span(f"late {number}", kind="reduction", op="allreduce", algorithm=f"a{number}"):
        pass
tl.counter("one more", 0.25)
with SPAN:
    pass
named = [recorder.track(f"track {number}") for number in range(1000)]
groups = [recorder.communicator(range(3), f"group {number}") for number in range(2100)]
with tl.span("in a group", kind="reduction", communicator=groups[-1]):
    pass
train()
"""


@both_recorders
@pytest.mark.slow
def test_names_without_end(tmp_path: Path, recorder: str) -> None:
    """Those of a kind and operation that come too late share a name; each is counted, one is told."""
    ran = harmless(MANY, tmp_path, recorder)
    assert len(ran.warned) == 1
    assert "further ones are recorded as '(other names)'" in ran.warned[0]
    recorded = read_one(tmp_path / "trace")
    others = recorded.frame.filter(pl.col("name") == "(other names)")
    counts = others.group_by("type", "kind", "op").len().rows()
    counts_by_key = {row[:3]: row[3] for row in counts}
    assert counts_by_key["span", "reduction", "allreduce"] == 500
    assert counts_by_key["counter", "user", None] == 1 + 20
    assert counts_by_key["instant", "data", None] > 1000
    assert recorded.side.dropped["too many names"] > 1500
    assert recorded.frame.filter(pl.col("name") == "compute").height == 121
    assert recorded.side.complete


STRANGE = """
import threading
LONG = "x" * 10_000_000
for name in ("", "\\0", "a\\nb\\r\\n", "\\ud800 half", "\\u202e", "{}", "%s", LONG, "'\\"<b>"):
    with tl.span(name, algorithm=name, kind="reduction"):
        tl.instant(name)
        tl.counter(name, 1.0)
    thread = threading.Thread(target=train, name=name)
    thread.start()
    thread.join()
for name in (None, 5, 2.5, b"bytes", ("a", 1), ["list"], {"a": 1}, object(), float("nan")):
    tl.instant(name)
    tl.counter(name, 1.0)
"""


@both_recorders
def test_names_of_any_text_do_no_harm(tmp_path: Path, recorder: str) -> None:
    """Whatever a text may hold, in spans, instants, counters and threads, and what is no text at all."""
    ran = harmless(STRANGE, tmp_path, recorder)
    assert ran.warned == []
    recorded = read_one(tmp_path / "trace")
    names = set(recorded.frame["name"])
    assert {"", "\0", "a\nb\r\n", "5", "2.5", "None", "['list']", "nan"} <= names
    assert max(map(len, names)) == 1000
    assert recorded.side.dropped == {}
    assert (tmp_path / "trace").is_dir()
    assert recorded.path.stat().st_size < 1 << 20


THREADS = """
import threading
from tracelens_instrument import recording
from tracelens_instrument.core import registry
registry.LAST_THREAD = recording.LAST_THREAD = 50
registry._OTHER_THREADS = registry.replace(registry._OTHER_THREADS, index=50)
def one():
    with SPAN:
        pass
for _ in range(200):
    thread = threading.Thread(target=one)
    thread.start()
    thread.join()
train()
"""


@both_recorders
def test_threads_without_end(tmp_path: Path, recorder: str) -> None:
    """More threads than rows of the table: the last share one."""
    ran = harmless(THREADS, tmp_path, recorder)
    assert ran.warned == []
    recorded = read_one(tmp_path / "trace")
    assert recorded.frame.filter(pl.col("name") == "compute").height == 200 + 120
    assert sorted(row.index for row in recorded.side.threads) == list(range(51))


def test_limits_are_those_of_the_format() -> None:
    """The last row of the thread table is the last that a record can name."""
    assert registry.LAST_THREAD == 2**16 - 1
    assert registry.MOST_NAMES <= 2**16
