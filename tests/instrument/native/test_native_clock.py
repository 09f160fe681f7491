"""The native recorder's times are those of the monotonic clock, however it reads them."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.launch.recording import run_child

from tracelens_instrument.core import backend, clock

if not backend.NATIVE:
    pytest.skip("the native recorder is not in use", allow_module_level=True)

from tracelens_instrument import _native

OFF_NS = 5000  # what a kernel that corrects its clock briskly may change between two comparisons
PAUSES = (0.0, 0.0, 0.03, 0.0, 0.005, 0.1, 0.0)  # shorter and longer than a comparison serves


@pytest.fixture(params=[True, False], ids=["counter", "kernel"])
def source(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once with the processor's counter where the kernel trusts it, once without."""
    if request.param and not clock._counts_ticks():
        pytest.skip("the kernel of this machine has another source for its clock")
    _native.use_counter(request.param)
    yield
    _native.use_counter(clock._counts_ticks())


@pytest.mark.usefixtures("source")
def test_between_two_readings_of_the_kernel() -> None:
    """A time lies between one taken before and one taken after, right away and after pauses."""
    for pause in PAUSES:
        time.sleep(pause)  # the clock's behaviour after a pause is the point
        for _ in range(2000):
            before_ns = time.monotonic_ns()
            now_ns = clock.now()
            after_ns = time.monotonic_ns()
            assert before_ns - OFF_NS < now_ns < after_ns + OFF_NS


@pytest.mark.usefixtures("source")
def test_the_clock_never_goes_backwards() -> None:
    """Of two times the later one is not smaller, also where the counter is compared in between."""
    end = clock.now() + 30_000_000
    previous_ns = 0
    while previous_ns < end:
        now_ns = clock.now()
        assert now_ns >= previous_ns
        previous_ns = now_ns


def test_an_unreadable_clock_source_is_not_trusted() -> None:
    """What cannot be read is no reason to trust a counter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "_SOURCE", clock._SOURCE / "missing")
        assert not clock._counts_ticks()


ANSWER = """
import sys
from tracelens_instrument.core.clock import now
for _ in sys.stdin:
    print(now(), flush=True)
"""


@pytest.mark.end_to_end
def test_clocks_of_two_processes_agree() -> None:
    """What one process saw between two moments of another lies between their times."""
    with subprocess.Popen(
        [sys.executable, "-c", ANSWER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as other_process:
        assert other_process.stdin is not None
        assert other_process.stdout is not None
        for _ in range(1000):
            before_ns = clock.now()
            other_process.stdin.write(b"?\n")
            other_ns = int(other_process.stdout.readline())
            assert before_ns - OFF_NS < other_ns < clock.now() + OFF_NS


NAMESPACE = """
import ctypes, os, time
from tracelens_instrument.core.clock import now
def asleep():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
slept = asleep()
end = time.monotonic() + 0.05
while time.monotonic() < end:
    now()
if ctypes.CDLL(None).unshare(0x80) != 0:
    print("not allowed here")
    raise SystemExit
with open("/proc/self/timens_offsets", "w") as offsets:
    offsets.write(f"monotonic {-int(end / 2)} 0")
child = os.fork()
before, found, after = time.monotonic_ns(), now(), time.monotonic_ns()
if child == 0:
    shifted = asleep() - slept > 0.4e9 * end
    os._exit(not (shifted and before - 5000 < found < after + 5000))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.end_to_end
def test_a_child_in_another_time_namespace_has_its_time() -> None:
    """A child that is born into another time namespace has the time of that."""
    output = run_child(NAMESPACE).stdout
    if "not allowed here" in output:
        pytest.skip("making a time namespace takes more rights")
    assert output == "0\n"
