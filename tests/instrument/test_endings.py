"""How a process ends is noted, whatever ends it, and what the program has put there still works."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment, read

from tracelens.readers.native.recordings import list_recordings
from tracelens.schema.endings import Ending
from tracelens.schema.side import SideTables

pytestmark = pytest.mark.end_to_end


PROGRAM = """
import faulthandler, multiprocessing, os, signal, sys, threading, time
import tracelens as tl
{before}
tl.start(sys.argv[1])
def work():
    {end}
with tl.step(3), tl.span("forward", kind="forward"):
    work()
"""

FORKED = """
import multiprocessing, sys
import tracelens as tl
def rank(folder):
    tl.start(folder)
    with tl.span("piece"): 1 / 0
child = multiprocessing.get_context("fork").Process(target=rank, args=(sys.argv[1],))
child.start(); child.join(); print(child.exitcode)
"""


def run(folder: Path, end: str, before: str = "") -> tuple[int, str, SideTables]:
    """Run a program that ends so; return its exit code, what it wrote, and its side tables."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end, before=before), folder],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    (recording,) = list_recordings(folder)
    return done.returncode, done.stdout + done.stderr, read(recording).side


def only(side: SideTables) -> Ending:
    (ending,) = side.endings
    return ending


def test_exception_is_noted_with_its_message_and_frame(tmp_path: Path) -> None:
    code, text, side = run(tmp_path, 'raise ValueError("loss is nan\\nmore")')
    ending = only(side)
    assert (code, side.complete) == (1, True)
    assert (ending.cause, ending.message, ending.thread) == ("ValueError", "loss is nan", None)
    assert ending.user_frame is not None
    assert ending.user_frame.startswith("work (")
    assert [frame.split()[0] for frame in ending.frames] == ["work", "<module>"]
    assert "ValueError: loss is nan" in text


@pytest.mark.parametrize(
    "end",
    [
        'sys.exit("no learning rate")',
        'try: sys.exit("no learning rate")\n    finally: work = None',
        'import argparse; argparse._sys.exit("no learning rate")',
        'sys.exit(ValueError("no learning rate"))',
    ],
)
def test_text_of_an_exit_is_noted(end: str, tmp_path: Path) -> None:
    """The program ends as without it: the text on standard error, and 1."""
    code, text, side = run(tmp_path, end)
    ending = only(side)
    assert (code, text, side.complete) == (1, "no learning rate\n", True)
    assert (ending.cause, ending.message, ending.thread) == ("SystemExit", "no learning rate", None)
    assert ending.user_frame is not None
    assert ending.user_frame.startswith("work (")
    assert [frame.split()[0] for frame in ending.frames] == ["work", "<module>"]


def test_code_of_an_exit_is_noted(tmp_path: Path) -> None:
    code, text, side = run(tmp_path, "sys.exit(3)")
    ending = only(side)
    assert (code, text) == (3, "")
    assert (ending.cause, ending.message) == ("exit code 3", "")
    assert ending.user_frame is not None
    assert ending.user_frame.startswith("work (")


def test_exception_that_becomes_an_exit_code_is_noted(tmp_path: Path) -> None:
    code, _, side = run(tmp_path, "try: 1 / 0\n    except ZeroDivisionError: sys.exit(1)")
    assert (code, only(side).cause) == (1, "ZeroDivisionError")


@pytest.mark.parametrize("end", ["sys.exit(3)", 'raise SystemExit("no data")'])
def test_exit_of_a_process_of_multiprocessing_is_noted(end: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED.replace("1 / 0", end), tmp_path],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    (recording,) = list_recordings(tmp_path)
    assert done.stdout.strip() == ("3" if "3" in end else "1")
    ending = only(read(recording).side)
    expected = ("exit code 3", "") if "3" in end else ("SystemExit", "no data")
    assert (ending.cause, ending.message) == expected
    assert (ending.user_frame or "").startswith("rank (")


def test_exit_of_a_thread_is_noted_with_its_name(tmp_path: Path) -> None:
    """Python ends the thread without a word."""
    end = """
    def load(): raise SystemExit("no data")
    thread = threading.Thread(target=load, name="loader"); thread.start(); thread.join()"""
    code, text, side = run(tmp_path, end)
    ending = only(side)
    assert (code, text, ending.thread) == (0, "", "loader")
    assert (ending.cause, ending.message) == ("SystemExit", "no data")
    assert (ending.user_frame or "").startswith("load (")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ('try: sys.exit("text")\n    except SystemExit: pass', 0),
        ('try: sys.exit("text")\n    except SystemExit: pass\n    sys.exit(0)', 0),
        ('try: raise SystemExit("text")\n    except SystemExit: pass', 0),
        ('SystemExit("text")', 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(256)", 0),
        ('try: sys.exit("text")\n    except SystemExit: pass\n    tl.stop()', 0),
        ("sys.exit()", 0),
        ("thread = threading.Thread(target=sys.exit); thread.start(); thread.join()", 0),
    ],
)
def test_exit_that_is_caught_or_no_failure_is_not_noted(
    end: str, code: int, tmp_path: Path
) -> None:
    returned, text, side = run(tmp_path, end)
    assert (returned, text, side.endings) == (code, "", ())


def test_exception_after_an_exit_that_was_caught(tmp_path: Path) -> None:
    """It ended the program, and not the text."""
    _, _, side = run(tmp_path, 'try: sys.exit("text")\n    except SystemExit: pass\n    1 / 0')
    assert only(side).cause == "ZeroDivisionError"


def test_exit_is_put_back(tmp_path: Path) -> None:
    before = "program_exit = sys.exit"
    end = "assert sys.exit is not program_exit; tl.stop(); assert sys.exit is program_exit"
    assert run(tmp_path, end, before)[0] == 0


@pytest.mark.parametrize(
    ("end", "cause", "code"),
    [
        ("faulthandler._sigsegv()", "SIGSEGV", -11),
        ("os.abort()", "SIGABRT", -6),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", "SIGTERM", -15),
    ],
)
def test_signal_leaves_the_python_stack(tmp_path: Path, end: str, cause: str, code: int) -> None:
    returned, _, side = run(tmp_path, end)
    ending = only(side)
    assert (returned, side.complete, ending.cause) == (code, False, cause)
    assert ending.user_frame is not None
    assert ending.user_frame.startswith("work (")
    assert ending.at_ns >= side.clocks[0].monotonic_ns


def test_exception_of_a_thread_is_noted_with_its_name(tmp_path: Path) -> None:
    end = 'thread = threading.Thread(target=lambda: 1 / 0, name="loader"); thread.start(); thread.join()'
    code, _, side = run(tmp_path, end)
    assert (code, only(side).cause, only(side).thread) == (0, "ZeroDivisionError", "loader")


@pytest.mark.parametrize("end", ["pass", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_is_noted_where_nothing_can_be(tmp_path: Path, end: str) -> None:
    _, _, side = run(tmp_path, end)
    assert side.endings == ()


def test_handlers_of_the_program_are_called_as_before(tmp_path: Path) -> None:
    handlers = (
        'signal.signal(signal.SIGTERM, lambda *_: (print("handled"), sys.exit(5)))\n'
        'sys.excepthook = lambda *_: print("hooked")'
    )
    code, text, side = run(tmp_path / "signal", "os.kill(os.getpid(), signal.SIGTERM)", handlers)
    assert (code, "handled" in text, side.complete) == (5, True, True)
    code, text, side = run(tmp_path / "hook", "1 / 0", handlers)
    assert (code, "hooked" in text, only(side).cause) == (1, True, "ZeroDivisionError")


def test_faulthandler_of_the_program_keeps_its_file(tmp_path: Path) -> None:
    _, text, side = run(tmp_path, "faulthandler._sigsegv()", "faulthandler.enable()")
    assert "Segmentation fault" in text
    assert side.endings == ()


def test_child_that_is_terminated_leaves_no_stack_in_its_parents_recording(tmp_path: Path) -> None:
    end = """
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start(); time.sleep(0.2); child.terminate(); child.join()
    os.kill(os.getpid(), signal.SIGKILL)"""
    _, _, side = run(tmp_path, end)
    assert side.endings == ()


def test_hooks_are_put_back_when_recording_stops(tmp_path: Path) -> None:
    end = "tl.stop(); print(sys.excepthook is sys.__excepthook__, faulthandler.is_enabled())"
    _, text, _ = run(tmp_path, end)
    assert "True False" in text


def test_process_of_multiprocessing_notes_what_ends_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, tmp_path],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    (recording,) = list_recordings(tmp_path)
    assert done.stdout.strip() == "1"
    assert only(read(recording).side).cause == "ZeroDivisionError"


def test_rank_that_fails_before_its_first_event_leaves_a_recording(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", "import tracelens_instrument.recorder\nraise ImportError('flash')"],
        env=clean_environment(TRACELENS_DIR=str(tmp_path), RANK="1", WORLD_SIZE="2"),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    (recording,) = list_recordings(tmp_path)
    side = read(recording).side
    assert (side.process.rank, only(side).cause, only(side).message) == (1, "ImportError", "flash")


def start_rank(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program as rank 1, which records from its first event on."""
    return subprocess.run(
        [sys.executable, "-c", f"import tracelens_instrument.recorder\n{program}"],
        env=clean_environment(TRACELENS_DIR=str(folder), RANK="1", WORLD_SIZE="2"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_rank_that_exits_before_its_first_event_leaves_a_recording(tmp_path: Path) -> None:
    assert start_rank(tmp_path, "import sys; sys.exit(4)").returncode == 4
    (recording,) = list_recordings(tmp_path)
    side = read(recording).side
    assert (side.process.rank, only(side).cause, only(side).message) == (1, "exit code 4", "")


@pytest.mark.parametrize("end", ["raise SystemExit(4)", "1 / 0"])
@pytest.mark.parametrize("shell", [False, True])
def test_helper_of_a_rank_is_no_rank(end: str, shell: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """A rank asks another Python what it can do, before its first event."""
    helper = f"import tracelens_instrument.recorder\n{end}"
    words = '["sh", "-c", f"{shlex.join(words)}; exit $?"]' if shell else "words"
    program = f"""
import shlex, subprocess, sys
words = [sys.executable, "-c", {helper!r}]
print(subprocess.run({words}, stderr=subprocess.DEVNULL).returncode)
"""
    done = start_rank(tmp_path, program)
    assert done.stdout.strip() in {"4", "1"}, done.stderr
    assert not list_recordings(tmp_path) if tmp_path.exists() else True


def test_message_of_another_process_keeps_its_reason(tmp_path: Path) -> None:
    """As of a worker of a DataLoader, whose exception quotes a traceback."""
    text = r"Caught OSError in worker 0.\nOriginal Traceback (most recent call last):\n x\nOSError: bad"
    _, _, side = run(tmp_path, f'raise OSError("{text}")')
    assert only(side).message == "Caught OSError in worker 0. OSError: bad"
