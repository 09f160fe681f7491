"""Whatever processes a training starts, or may not start, they work as without the recorder."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launch.harmless import both_recorders, harmless
from support.launch.recording import read_all, read_one
from support.turns import select_turn

pytestmark = pytest.mark.end_to_end

WORKING = """
open("working.py", "w").write('''
import os, sys
import tracelens as tl
SPAN = tl.span("work")
def work(number):
    with SPAN(nbytes=number):
        return 2 * number
def leave(how):
    with SPAN:
        sys.exit(3) if how == "exit" else os._exit(4)
def stay():
    with SPAN:
        while True:
            pass
''')
sys.path.insert(0, FOLDER)
os.environ["PYTHONPATH"] = FOLDER + os.pathsep + os.environ.get("PYTHONPATH", "")
import multiprocessing, subprocess
from concurrent.futures import ProcessPoolExecutor
import working
"""

STARTED = (
    WORKING
    + """
train()
for method in METHODS:
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        print(method, pool.map(working.work, range(5)))
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        print(list(executor.map(working.work, range(3))))
    for how in ("exit", "_exit"):
        process = context.Process(target=working.leave, args=(how,))
        process.start(); process.join()
        print(how, process.exitcode)
    process = context.Process(target=working.stay, daemon=True)
    process.start(); process.terminate(); process.join()
    print("terminated", process.exitcode)
train()
"""
)

COMMANDS = (
    WORKING
    + """
CODE = "import working; print(working.work(4), flush=True); working.leave('exit')"
def command(**more):
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, **more)
    print(done.returncode, done.stdout.strip(), done.stderr)
with SPAN:
    command()                                      # by vfork
    command(close_fds=False)
    command(start_new_session=True)
    command(preexec_fn=lambda: working.work(1))    # by fork
    spawned = os.posix_spawn(sys.executable, [sys.executable, "-c", CODE], os.environ)
    print(os.waitstatus_to_exitcode(os.waitpid(spawned, 0)[1]))
    print(os.waitstatus_to_exitcode(os.spawnv(os.P_WAIT, sys.executable, ["python", "-c", "pass"])))
    print(os.popen("echo here").read())
train()
"""
)


ALL_METHODS = '("fork", "spawn", "forkserver")'
PROGRAMS = [
    pytest.param(STARTED.replace("METHODS", '("fork",)'), id="forked"),
    *select_turn(
        [
            pytest.param(
                STARTED.replace("METHODS", ALL_METHODS),
                id="multiprocessing",
                marks=pytest.mark.slow,
            ),
            pytest.param(COMMANDS, id="commands", marks=pytest.mark.slow),
        ]
    ),
]


@both_recorders
@pytest.mark.parametrize("program", PROGRAMS)
def test_processes_end_as_without(tmp_path: Path, recorder: str, program: str) -> None:
    """Pools, processes and commands, however they are started: what they return, and how they end."""
    ran = harmless(program, tmp_path, recorder)
    assert ran.warned == [], ran.errors
    recorded = read_all(tmp_path / "trace")
    (training,) = [process for process in recorded if process.named("loss")]
    assert training.side.complete
    of_children = [process for process in recorded if process.named("work")]
    assert len(of_children) >= 4
    ranks = {process.side.process.parent_rank_pid for process in of_children}
    assert ranks == {training.side.process.pid}


LOADERS = """
open("numbers_of.py", "w").write('''
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index): return torch.full((3,), float(index))
''')
sys.path.insert(0, FOLDER)
import torch
from numbers_of import Numbers
from torch.utils.data import DataLoader
loader = DataLoader(
    Numbers(), 2, num_workers=1, persistent_workers=True, multiprocessing_context=METHOD
)
if RECORDS: tl.attach(torch.nn.Linear(3, 1), loader=loader)
for epoch in range(2):
    print([batch.sum().item() for batch in loader])
left = iter(DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context="fork"))
print(next(left).sum().item())
del left
train()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", select_turn(("fork", "spawn", "forkserver")))
def test_workers_of_data_loaders(method: str, tmp_path: Path) -> None:
    """Forked, spawned or from a server, for one epoch or for several, or left in the middle of one."""
    pytest.importorskip("torch")
    ran = harmless(
        LOADERS.replace("METHOD", repr(method)), tmp_path, os.environ.get("TRACELENS_NATIVE", "1")
    )
    assert ran.warned == [], ran.errors
    recorded = read_all(tmp_path / "trace")
    (training,) = [one for one in recorded if one.named("loss")]
    assert len(training.named("data")) >= 2 * 3


ALONE = """
import ctypes, pathlib, resource, socket, subprocess
import tracelens_instrument.storage.conversion, tracelens_instrument.stacks.launch
if RECORDS:  # another user may not be able to read what is imported on the way
    tl.start(FOLDER + "/before"); train(steps=1); tl.stop()
else:
    train(steps=1)
if os.geteuid() == 0: os.setresuid(54321, 54321, 54321)  # root may always start processes
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try: os.fork()
except OSError: print("no more processes")
os.environ["TRACELENS_SAMPLE"] = "100"
if RECORDS: tl.start(FOLDER + "/trace")
train(steps=400, spans=400)
"""


@pytest.fixture
def anybodys() -> Iterator[Path]:
    """A folder in which any user may write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "with"
        folder.mkdir()
        folder.parent.chmod(0o755)
        folder.chmod(0o777)
        yield folder


@both_recorders
def test_no_process_may_be_started(anybodys: Path, recorder: str) -> None:
    """Neither what samples stacks, nor what converts: two warnings, and segments that have it all."""
    ran = harmless(ALONE, anybodys, recorder, starts=False)
    assert "no more processes" in ran.output
    sampled, converted = ran.warned
    assert "stacks are not sampled, the training goes on" in sampled
    assert "it stays as it is" in converted
    recorded = read_one(anybodys / "trace")
    assert recorded.frame.filter(name="compute").height == 400 * 401
    assert recorded.side.complete
