"""A program that closes all descriptors, as a daemon does when it begins, keeps its files to itself."""

from pathlib import Path

import pytest
from support.launch.harmless import both_recorders, harmless
from support.launch.recording import read_one

pytestmark = pytest.mark.end_to_end

DAEMON = """
train()
os.closerange(3, 256)
os.mkdir(FOLDER + "/own")
files = [open(f"{FOLDER}/own/{number}", "w") for number in range(20)]
for file in files:
    file.write("mine\\n")
    file.flush()
named = [tl.span(f"name {number}") for number in range(100)]
train(steps=100, spans=200)  # through many segments
for file in files:
    file.write("still mine\\n")
print(os.path.getsize(FOLDER + "/own/0"))
if RECORDS: tl.stop()
for file in files:
    file.close()
print({open(f"{FOLDER}/own/{number}").read() for number in range(20)})
"""


@both_recorders
def test_descriptors_closed_and_used_again(tmp_path: Path, recorder: str) -> None:
    """Nothing is written, cut off or closed that is the program's, and the recording goes on."""
    ran = harmless(DAEMON, tmp_path, recorder)
    assert ran.warned == []
    recorded = read_one(tmp_path / "trace")
    names = recorded.frame["name"].to_list()
    assert names.count("compute") == 20 * 6 + 100 * 201
    assert recorded.side.complete


REPLACED = """
import glob
train()
if RECORDS:
    (side,) = glob.glob(FOLDER + "/trace/*/side.jsonl")
    os.unlink(side)
    open(side, "w").write("another's\\n")
os.closerange(3, 256)
tl.span("new")
train()
if RECORDS:
    assert open(side).read() == "another's\\n"
"""


@both_recorders
def test_side_file_that_is_not_ours_any_more(tmp_path: Path, recorder: str) -> None:
    """What lies there instead is left alone, which costs the recording and one warning."""
    ran = harmless(REPLACED, tmp_path, recorder)
    assert len(ran.warned) == 1
    assert "side file of the recording cannot be written" in ran.warned[0]


LIVE = """
import glob
CUT = []
def heard(event, arguments):
    truncates = event == "open" and (arguments[2] or 0) & os.O_TRUNC
    if event == "os.truncate" or truncates:
        CUT.append(str(arguments[0]))
sys.addaudithook(heard)
seen = {}
for round in range(12):
    train(steps=8, spans=1000)
    for path in glob.glob(FOLDER + "/trace/**/*.seg", recursive=True):
        if path not in seen:
            seen[path] = FOLDER + f"/{len(seen)}.link"
            os.link(path, seen[path])
if RECORDS:
    tl.keep()
    tl.stop()
    sizes = {os.path.getsize(link) for link in seen.values()}
    assert len(seen) > 20 and sizes == {1 << 18}, sizes
    assert not any(".seg" in path for path in CUT), CUT
"""


@both_recorders
@pytest.mark.parametrize("keep", [pytest.param("all", marks=pytest.mark.slow), "last:3"])
def test_live_segments_are_never_truncated(tmp_path: Path, recorder: str, keep: str) -> None:
    """Cutting off memory that is mapped kills who writes to it, so segments only ever get unlinked."""
    program = f"if RECORDS: tl.start(FOLDER + '/trace', keep={keep!r}, budget='30MB')\n{LIVE}"
    ran = harmless(program, tmp_path, recorder, starts=False)
    assert ran.warned == []
