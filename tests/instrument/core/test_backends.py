"""The recorder in C and the one in Python write the same."""

from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import read_one, run_child

pytestmark = pytest.mark.end_to_end

PROGRAM = """
    import contextlib, copy, pickle, sys, threading
    import tracelens as tl
    from tracelens_instrument import recorder

    class Index:
        def __index__(self):
            return 11

    tl.start(sys.argv[1])
    group = recorder.communicator([0, 1], "pair")
    flight = recorder.track("in flight")
    span = tl.span("piece")
    reduce = tl.span("reduce", kind="reduction", op="allreduce", communicator=group)

    def values():
        for nbytes in (0, -1, 2**62, 2**63, True, None, 1.5, "many", Index()):
            with span(nbytes=nbytes):
                pass
        for step in (None, 4, 2**31 - 1, 2**31):
            span.begin(step=step).end()
        for short in (0, 2**16 - 1, 2**16, -3):
            with span(queue_depth=short, micro_step=short):
                pass
        span.begin(flight, 1, 2, 3, 4, 5, 2**64 - 1, 7, 8, 9).end()
        span.begin(track=2**20).end()
        reduce(seq=2**32 - 1, bucket=-5, peer=2, key=3, request=9).end(failed=True)
        reduce(**{"".join(("nb", "ytes")): 6}).end(True)

    def ends():
        span.begin().discard()
        token = span.begin(nbytes=77)
        token.end()
        token.end(failed=True)
        span.begin(nbytes=78)
        with contextlib.suppress(KeyError), span, span(nbytes=79):
            raise KeyError
        with contextlib.ExitStack() as stack:
            stack.enter_context(span(nbytes=80))

    def completes():
        span.complete(5, 9)
        span.complete(5, 9, flight, failed=True, estimated=True, seq=3)
        span.complete(start_ns=5, end_ns=9)
        span.complete("five", 9)
        span.complete(5, 2**63)
        span.complete(5, -(2**63), failed=True)

    def misuse():
        for wrong in ({"colour": 1}, {"end_ns": 1}, {"failed": True}):
            try:
                span(**wrong)
            except TypeError:
                tl.instant("refused")
        try:
            span.complete(5)
        except TypeError:
            tl.instant("refused")

    def many():
        for number in range(9000):
            with span:
                reduce(seq=number).end()

    for number, part in enumerate((values, ends, completes, misuse, many)):
        with tl.step(number, samples=3):
            with pickle.loads(pickle.dumps(span)), copy.copy(span):
                tl.traced(part)()
    thread = threading.Thread(target=values, name="other")
    thread.start()
    thread.join()
    tl.counter("level", 0.25)
    tl.stop()
    print(recorder.backend()[0])
"""

OWN = ("start_ns", "duration_ns", "process")  # what two runs of a program differ in


def record_with_backend(folder: Path, native: str) -> tuple[str, list[dict[str, Any]], Any]:
    used = run_child(PROGRAM, folder, TRACELENS_NATIVE=native).stdout.strip()
    found = read_one(folder)
    return used, found.events, found.side


def without_own(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in OWN}


def test_they_write_the_same(tmp_path: Path) -> None:
    """Event by event and field by field, apart from times: usual values, absurd ones, many."""
    backend, python, python_side = record_with_backend(tmp_path / "python", "0")
    assert backend == "python"
    backend, native, native_side = record_with_backend(tmp_path / "native", "1")
    if backend == "python":
        pytest.skip("the native recorder was not built here")
    assert len(python) > 1 << 14  # more than a segment holds
    assert [*map(without_own, native)] == [*map(without_own, python)]
    assert native_side.definitions == python_side.definitions
    assert native_side.communicators == python_side.communicators
    assert native_side.dropped == python_side.dropped


@pytest.mark.parametrize(("native", "expected"), [("0", "python"), ("1", "")])
def test_the_choice_is_told(native: str, expected: str) -> None:
    """Which recorder serves, and why, can be asked."""
    code = "from tracelens_instrument.recorder import backend; print(*backend(), sep='|')"
    used, _, why = run_child(code, TRACELENS_NATIVE=native).stdout.strip().partition("|")
    assert used == expected or (not expected and used in {"native", "python"})
    assert why


def test_free_threaded_python() -> None:
    """It uses the recorder written in Python, even if the native one is requested."""
    code = """
        import sys
        flags, sys.abiflags = sys.abiflags, "t"
        import tracelens_instrument.core.backend
        sys.abiflags = flags
        import tempfile
        import tracelens as tl
        from tracelens_instrument.recorder import backend
        tl.start(tempfile.mkdtemp())
        with tl.span("piece"):
            pass
        print(*backend(), sep="|")
    """
    used, _, why = run_child(code, TRACELENS_NATIVE="1").stdout.strip().partition("|")
    assert used == "python"
    assert "free-threaded" in why


def test_native_part_of_other_sources() -> None:
    """One that was built before the sources changed is not used, and it is said what to do."""
    code = """
        import sys, types
        sys.modules["tracelens_instrument._native"] = types.ModuleType("old")
        from tracelens_instrument.recorder import backend
        print(*backend(), sep="|")
    """
    used, _, why = run_child(code, TRACELENS_NATIVE="1").stdout.strip().partition("|")
    assert used == "python"
    assert "install again" in why
