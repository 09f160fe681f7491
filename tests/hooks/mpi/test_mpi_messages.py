"""Every point-to-point call of the table moves its message once, and is recorded with peer and tag."""

from pathlib import Path
from typing import Any

import pytest
from support.launch.mpi import run_alone
from support.launch.recording import Recorded, read_one

from tracelens_instrument.hooks.mpi.table import POINT_TO_POINT

BYTES = 4 * 8
TAGS = {name: tag for tag, name in enumerate(POINT_TO_POINT)}

PROGRAM = """
MPI.Attach_buffer(bytearray(1 << 16))
found = {}

def exchange(name, tag):
    upper = name[0].isupper()
    a, b = np.arange(4.0), np.zeros(4)
    call = getattr(comm, name)
    if "recv" in name.lower() and "send" not in name.lower():
        other = plain.Isend(a, 0, tag) if upper else plain.isend("x", 0, tag)
        arguments = {"source": 0, "tag": tag}
        result = call(b, **arguments) if upper else call(None, **arguments)
    elif "recv" in name.lower():
        other = None
        if name.endswith("_replace"):
            b = a.copy()
            result = call(b, 0, tag, 0, tag)
        else:
            result = call(a if upper else "x", 0, tag, b if upper else None, 0, tag)
    else:
        other = plain.Irecv(b, 0, tag) if upper else plain.irecv(None, 0, tag)
        result = call(a if upper else "x", 0, tag)
    if isinstance(result, MPI.Request):
        result = result.wait()
    received = other.wait() if other is not None else result
    return b.tolist() if upper else result or received

for tag, name in enumerate(NAMES):
    found[name] = exchange(name, tag)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Recorded]:
    folder: Path = tmp_path_factory.mktemp("messages") / "trace"
    return run_alone(f"NAMES = {list(POINT_TO_POINT)!r}\n" + PROGRAM, folder), read_one(folder)


@pytest.mark.parametrize("name", POINT_TO_POINT)
def test_the_message_arrives(run: tuple[dict[str, Any], Recorded], name: str) -> None:
    assert run[0][name] == ([0.0, 1.0, 2.0, 3.0] if name[0].isupper() else "x")


@pytest.mark.parametrize("name", POINT_TO_POINT)
def test_each_leg_is_recorded(run: tuple[dict[str, Any], Recorded], name: str) -> None:
    events = run[1].named(name)
    assert [event["op"] for event in events] == [leg.op for leg in POINT_TO_POINT[name].legs]
    for event in events:
        assert (event["kind"], event["status"], event["peer"]) == ("reduction", "closed", 0)
        assert (event["key"], event["seq"]) == (TAGS[name], 0)
        assert event["bytes"] == (BYTES if name[0].isupper() else None)


@pytest.mark.parametrize("name", POINT_TO_POINT)
def test_only_non_blocking_ones_are_beside_the_thread(
    run: tuple[dict[str, Any], Recorded], name: str
) -> None:
    recorded = run[1]
    for event in recorded.named(name):
        assert recorded.side.threads[event["thread"]].in_flight == (name[0] in "Ii")
