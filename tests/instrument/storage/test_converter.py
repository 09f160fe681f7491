"""A long recording becomes Arrow while it goes on, by a process that nobody notices."""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.launch.converters import converted, converters_of, kill
from support.launch.patience import PATIENCE_S, wait_until
from support.launch.recording import clean_environment, read_one, run_child

import tracelens as tl
from tracelens.conversion.folder import load_progress
from tracelens.schema.side import Retention
from tracelens_instrument.lifecycle import current_recording
from tracelens_instrument.storage import conversion

if TYPE_CHECKING:
    from collections.abc import Iterator

SPANS = 400  # a step, beside its own
STEPS = 500  # 49 segments


def train(first: int = 0, steps: int = STEPS) -> None:
    span = tl.span("piece")
    for step in range(first, first + steps):
        with tl.step(step):
            for piece in range(SPANS):
                with span(nbytes=step * SPANS + piece):
                    pass


def folder_of(trace: Path) -> Path:
    (folder,) = trace.glob("*.segments")
    return folder


def check_whole(trace: Path, steps: int) -> None:
    """Check that every span occurs once."""
    frame = read_one(trace).frame
    pieces = frame.filter(name="piece")["bytes"]
    assert pieces.to_list() == list(range(steps * SPANS))
    assert frame.filter(name="step").height == steps
    assert frame["status"].unique().to_list() == ["closed"]


@pytest.fixture
def converter(trace: Path) -> Iterator[int]:
    """The pid of a converter of this process's recording, which has done something."""
    train()
    wait_until((folder_of(trace) / "progress.json").exists)
    (pid,) = converters_of(folder_of(trace))
    yield pid
    tl.stop()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.end_to_end
@pytest.mark.usefixtures("converter")
@pytest.mark.slow
def test_segments_go_while_it_records(trace: Path) -> None:
    """A long recording has few files at any time, and one complete file at the end."""
    for first in range(STEPS, 3 * STEPS, STEPS):
        train(first)
        wait_until(lambda: len(list(folder_of(trace).iterdir())) < 45)
    tl.stop()
    assert [path.suffix for path in converted(trace).iterdir()] == [".arrow"]
    check_whole(trace, 3 * STEPS)


@pytest.mark.end_to_end
@pytest.mark.slow
def test_it_stands_apart(converter: int) -> None:
    """Not our child, not in our session, last in line, and with nothing of ours in its hands."""
    with pytest.raises(ChildProcessError):
        os.waitpid(converter, os.WNOHANG)
    assert os.getsid(converter) == converter
    assert os.getpriority(os.PRIO_PROCESS, converter) == 19
    group = Path(f"/proc/{converter}/autogroup")
    assert not group.exists() or group.read_text().endswith(" nice 19\n")
    open_paths = set()
    for entry in Path(f"/proc/{converter}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just closed that one
            open_paths.add(str(entry.readlink()))
    ours = {str(Path(f"/proc/self/fd/{number}").readlink()) for number in (0, 1, 2)}
    assert open_paths & ours <= {os.devnull}
    assert not [path for path in open_paths if path.startswith("pipe:")]
    variables = Path(f"/proc/{converter}/environ").read_text()
    assert "TRACELENS" not in variables


@pytest.mark.slow
@pytest.mark.end_to_end
def test_second_converter_is_refused(converter: int, trace: Path) -> None:
    """A second converter finds the lock taken, and ends."""
    recording = current_recording()
    assert recording is not None
    line = conversion._start_converter(recording.readable_path)
    assert line.wait_until_closed(20_000)
    line.close()
    assert converters_of(folder_of(trace)) == [converter]


@pytest.mark.slow
@pytest.mark.end_to_end
def test_killed_ones_are_replaced(converter: int, trace: Path) -> None:
    """But not for ever; what is left to do is done at the end."""
    pids = {converter}
    for turn in range(1, 6):
        found = converters_of(folder_of(trace))
        pids.update(found)
        kill(*found)
        wait_until(lambda: not converters_of(folder_of(trace)))
        train(turn * STEPS)
    assert len(pids) <= conversion._MAX_CONVERTER_STARTS
    tl.stop()
    check_whole(converted(trace), 6 * STEPS)


@pytest.mark.slow
@pytest.mark.end_to_end
def test_stop_returns_with_the_file(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the conversion takes longer than an exit would wait."""
    monkeypatch.setattr(conversion, "_PATIENCE_MS", 0)
    train(steps=2 * STEPS)
    assert list(folder_of(trace).glob("*.seg"))
    tl.stop()
    assert [path.suffix for path in trace.iterdir()] == [".arrow"]
    check_whole(trace, 2 * STEPS)


@pytest.mark.end_to_end
@pytest.mark.slow
def test_one_that_stands_still_is_given_up(
    converter: int, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sentence; the segments are complete and become the file when the converter goes on."""
    for name, value in (("_PATIENCE_MS", 0), ("_LOOK_EVERY_MS", 1), ("_MOST_UNCHANGED_LOOKS", 3)):
        monkeypatch.setattr(conversion, name, value)
    os.kill(converter, signal.SIGSTOP)
    with pytest.warns(RuntimeWarning, match="not an Arrow file yet"):
        tl.stop()
    check_whole(trace, STEPS)
    os.kill(converter, signal.SIGCONT)
    check_whole(converted(trace), STEPS)


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stderr", [Terminal(), io.StringIO(), None])
def test_waiting_shows_on_a_terminal(
    stderr: io.StringIO | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, which goes away; elsewhere nothing is written."""
    monkeypatch.setattr(conversion, "_LOOK_EVERY_MS", 0)
    file = tmp_path / "events.unfinished"
    file.write_bytes(bytes(3_000_000))
    ours, theirs = socket.socketpair()
    line = conversion._Channel(ours)
    with theirs, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        assert not conversion._await_end(line, file)
    line.close()
    if isinstance(stderr, Terminal):
        lines = stderr.getvalue().split("\r")
        assert lines[1] == "TraceLens: writing the recording, 3 MB so far\x1b[K"
        assert lines[-1] == "\x1b[K"
    elif stderr is not None:
        assert stderr.getvalue() == ""


@pytest.mark.end_to_end
@pytest.mark.usefixtures("converter")
def test_reader_sees_all_of_a_mixed_folder(trace: Path) -> None:
    """While it records, partly Arrow already, everything up to now is found."""
    assert load_progress(folder_of(trace)).length > 0
    check_whole(trace, STEPS)
    assert tl.open(trace).processes["events"].item() == STEPS * (SPANS + 1)


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.usefixtures("converter")
def test_forked_child_lets_it_be(trace: Path) -> None:
    """A child that ends, with all that ends with it, does not end the converter of its parent."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    train(STEPS)
    tl.stop()
    check_whole(converted(trace), 2 * STEPS)


@pytest.mark.slow
@pytest.mark.end_to_end
def test_closed_descriptors_do_no_harm(trace: Path) -> None:
    """A program that closes what it does not know, and opens files of its own, gets nothing of ours."""
    code = """
import os, sys, time
import tracelens as tl
tl.start(sys.argv[1])
span = tl.span("piece")
def train(steps):
    for step in steps:
        with tl.step(step):
            for piece in range(400):
                with span: pass
train(range(500))
os.closerange(3, 100)
files = [os.open(sys.argv[2], os.O_RDWR | os.O_CREAT) for _ in range(50)]
train(range(500, 1000))
"""
    run_child(code, trace.parent / "closed", trace.parent / "mine")
    converted(trace.parent / "closed")
    content = (trace.parent / "mine").read_bytes()
    assert b"\n" not in content.replace(b"}\n", b"")  # the side file's lines have braces


@pytest.mark.parametrize(
    ("options", "switch"), [({}, "0"), ({"keep": "last:100000"}, "1"), ({"budget": "1MB"}, "1")]
)
def test_no_converter_is_started_where_it_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], switch: str
) -> None:
    """It can be switched off; a ring recording or a small one starts none."""
    monkeypatch.setenv(conversion.SWITCH, switch)
    monkeypatch.setattr(conversion, "_start_converter", pytest.fail)
    tl.start(tmp_path, **options)
    train()
    tl.stop()


@pytest.mark.usefixtures("recorder_off")
def test_it_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no shell all is converted at the end."""
    monkeypatch.setattr(conversion, "_SHELL", "/no/such/shell")
    tl.start(tmp_path)
    train()
    tl.stop()
    check_whole(tmp_path, STEPS)


@pytest.mark.slow
@pytest.mark.end_to_end
def test_launcher_does_not_wait_for_it(tmp_path: Path) -> None:
    """A reader of the training's output sees its end when the training ends."""
    code = """
import os, signal, sys
import tracelens as tl
tl.start(sys.argv[1])
span = tl.span("piece")
for step in range(500):
    with tl.step(step):
        for piece in range(400):
            with span(nbytes=400 * step + piece): pass
(folder,) = (f"{sys.argv[1]}/{name}" for name in os.listdir(sys.argv[1]))
while not os.path.exists(folder + "/progress.json"): pass
sys.stdin.readline()
print("trained", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    # The converter is stopped, so it would hold the pipe for ever if it had it.
    with subprocess.Popen(
        command, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        wait_until(lambda: bool(list(tmp_path.glob("*.segments/progress.json"))))
        (pid,) = converters_of(folder_of(tmp_path))
        os.kill(pid, signal.SIGSTOP)
        output, _ = child.communicate(b"\n", timeout=PATIENCE_S)
    assert output == b"trained\n"
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert [path.suffix for path in tmp_path.iterdir()] == [".arrow"]
    check_whole(tmp_path, STEPS)
    assert not read_one(tmp_path).side.complete


def test_no_converter_is_started_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that still fills a segment when recording ends would start one that nothing ends."""
    monkeypatch.setattr(conversion, "_start_converter", pytest.fail)
    background = conversion.Background(tmp_path, Retention())
    assert not background.end()
    background.inform(1 << 20)


def test_a_line_that_cannot_be_closed_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its number, which may be another file's by then, would be closed when it is collected."""
    own_end, far_end = socket.socketpair()
    number = own_end.fileno()

    def refused(_number: int) -> None:
        raise OSError(errno.EIO, "cannot be closed")

    with far_end:
        line = conversion._Channel(own_end)
        with monkeypatch.context() as patched:
            patched.setattr(os, "close", refused)
            line.close()
        assert own_end.fileno() == -1
        os.close(number)
