"""A training ends as it does without the recorder, for every kind of exit, and is recorded."""

from pathlib import Path

import pytest
from support.launch.harmless import both_recorders, harmless
from support.launch.recording import read_all

pytestmark = pytest.mark.end_to_end

LATE = """
import atexit, threading, time, weakref
class Held:
    def __del__(self):
        with SPAN, SPAN(nbytes=1), tl.step(1):
            tl.instant("deleted"); tl.counter("late", 1.0); tl.span("new").begin().end()
sys.held = Held()
held = Held()
held.me = held
held.span = SPAN
def late():
    with SPAN: tl.instant("at exit")
    tl.span("made at exit").begin().end()
    tl.stop()
atexit.register(late)
weakref.finalize(held, late)
def endless():
    while True:
        with SPAN, SPAN(): SPAN.begin().end()
        time.sleep(0.0005)
for _ in range(3):
    threading.Thread(target=endless, daemon=True).start()
train()
"""

FORKED = """
import multiprocessing, subprocess
def child(how):
    train()
    if how == "exit": sys.exit(3)
    if how == "_exit": os._exit(4)
    if how == "abort": os.abort()
    if how == "raise": raise SystemExit(5)
with SPAN:
    for how in ("return", "exit", "_exit", "abort", "raise"):
        pid = os.fork()
        if not pid:
            sys.stdout = open(os.devnull, "w")
            child(how)
            os._exit(0)
        print(how, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    context = multiprocessing.get_context("fork")
    for how in ("return", "exit", "_exit"):
        process = context.Process(target=child, args=(how,))
        process.start(); process.join()
        print(how, process.exitcode)
def first():
    with SPAN: tl.instant("before exec")
print(subprocess.run(["true"], preexec_fn=first).returncode, os.system("exit 3"))
print(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 0"], os.environ) > 0, os.wait()[1])
train()
"""

EXECED = """
import time
train()
with SPAN:
    program = '''
import tracelens as tl
with tl.span("after exec"): print("another program")
'''
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-c", program])
"""

SIGNALS = """
import faulthandler, signal
faulthandler.enable(file=open(os.devnull, "w"))
train()
"""

# On purpose, so no sanitizer is to report it (`make sanitize`).
SEGFAULT = f"""
import signal
signal.signal(signal.SIGSEGV, signal.SIG_DFL)
{SIGNALS}
with SPAN: faulthandler._sigsegv()
"""

IN_A_THREAD = """
import threading
thread = threading.Thread(target=lambda: (train(), sys.exit(3)))
thread.start()
thread.join()
"""

SUBINTERPRETER = """
PROGRAM = "import tracelens as tl; span = tl.span('x'); span.begin().end(); tl.instant('y'); tl.stop()"
try:
    import _xxsubinterpreters as interpreters
    inner = interpreters.create()
    interpreters.run_string(inner, PROGRAM)
    interpreters.destroy(inner)
except ImportError:
    pass
train()
"""

ENDINGS = {
    "late": LATE,
    "forked": FORKED,
    "execed": EXECED,
    "exit in a thread": IN_A_THREAD,
    "exit code": "train()\nwith SPAN: sys.exit(7)",
    "message": "train()\nwith tl.step(1): sys.exit('over')",
    "exception": "train()\nwith SPAN(): raise KeyError(1)",
    "_exit": "train()\nwith SPAN: os._exit(5)",
    "abort": "train()\nwith SPAN: os.abort()",
    "terminated": SIGNALS + "with SPAN: signal.raise_signal(signal.SIGTERM)",
    "handled": SIGNALS
    + "signal.signal(15, lambda *_: sys.exit(9))\nwith SPAN: signal.raise_signal(15)",
    "interrupted": SIGNALS
    + "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background\n"
    + "with SPAN: signal.raise_signal(signal.SIGINT)",
    "segfault": SEGFAULT,
    "subinterpreter": SUBINTERPRETER,
}


QUICK = {"late", "forked", "execed", "exception", "terminated", "segfault"}
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENDINGS]


@both_recorders
@pytest.mark.parametrize("name", NAMES)
def test_end_is_as_without(tmp_path: Path, recorder: str, name: str) -> None:
    """The same output, the same exit code, no word of ours, and every step that was trained."""
    ran = harmless(ENDINGS[name], tmp_path, recorder)
    assert ran.warned == [], ran.errors
    assert "Exception ignored" not in ran.errors
    recordings = read_all(tmp_path / "trace")
    assert sum(len(one.named("loss")) for one in recordings) >= 20
    if name == "execed":
        assert any(one.named("after exec") for one in recordings)
