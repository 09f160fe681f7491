"""Whatever happens to the trace folder, the training ends as it would have without a recorder."""

from pathlib import Path

import pytest
from support.launch.harmless import both_recorders, harmless

pytestmark = pytest.mark.end_to_end

# Each case is a recording of its own, into which `during` breaks.
CASES = """
import glob, shutil

def case(name, during=None, before=None, directory=None):
    directory = directory or f"{FOLDER}/{name}"
    print(name, flush=True)
    sys.stderr.write(f"case {name}\\n")
    if before: before(directory)
    if RECORDS: tl.start(directory)
    train()
    if during and RECORDS: during(directory)
    train(steps=10, spans=1500)
    tl.stop()

def segments(directory):
    return glob.glob(directory + "/*.segments")[0]

def occupied(directory):
    open(directory, "w").close()

def unlinked(directory):
    for path in glob.glob(directory + "/*/*.seg"):
        os.unlink(path)

def replaced_by_file(directory):
    folder = segments(directory)
    shutil.rmtree(folder)
    open(folder, "w").write("not a folder")

def written_back(directory):
    for path in glob.glob(directory + "/*/*"):
        with open(path, "r+b") as file:
            content = file.read()
            file.seek(0)
            file.write(b"x" * len(content))

def renamed(directory):
    os.rename(segments(directory), directory + "/elsewhere")

def copied_over(directory):
    for path in glob.glob(directory + "/*/*"):
        content = open(path, "rb").read()
        open(path + ".copy", "wb").write(content)
        os.replace(path + ".copy", path)

def left(_directory):
    os.makedirs(FOLDER + "/left", exist_ok=True)
    os.chdir(FOLDER + "/left")
    os.rmdir(FOLDER + "/left")
"""

SABOTAGE = {
    "in the way": "before=occupied",
    "below a file": "directory=sys.executable + '/trace'",
    "no such place": "directory='/proc/nowhere/trace'",
    "not to be written": "directory='/sys/trace'",
    "no name": "directory='\\0'",
    "long name": "directory=FOLDER + '/' + 300 * 'x'",
    "removed": "during=shutil.rmtree",
    "segments unlinked": "during=unlinked",
    "replaced by a file": "during=replaced_by_file",
    "renamed": "during=renamed",
    "written back": "during=written_back",
    "copied over": "during=copied_over",
    "working folder gone": "before=left, directory='relative'",
}


@both_recorders
def test_one_warning_for_each(tmp_path: Path, recorder: str) -> None:
    """A recording that cannot be made, or not be finished, costs one warning each, and nothing else."""
    cases = "\n".join(f"case({name!r}, {how})" for name, how in SABOTAGE.items())
    ran = harmless(CASES + cases, tmp_path, recorder, starts=False)
    said = {part.partition("\n")[0]: part for part in ran.errors.split("case ")[1:]}
    counted = {name: part.count("TraceLens: ") for name, part in said.items()}
    unnoticed = {"segments unlinked", "copied over"}
    assert counted == {name: 0 if name in unnoticed else 1 for name in SABOTAGE}, ran.errors
