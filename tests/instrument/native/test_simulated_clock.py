"""The native recorder's clock follows the kernel's for any behaviour of the processor's counter."""

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
MS: Final = 1_000_000
PIECE_NS: Final = 200_000
EXACT_NS: Final = 100
TICKS_PER_NS: Final = 2.5  # the kernel's answer takes as long as so many ticks
FREEZE_NS: Final = 4 * MS  # how long a comparison with the kernel serves

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler here")
with_counter = pytest.mark.skipif(platform.machine() != "x86_64", reason="has no such counter")


class Machine:
    """A processor and a kernel whose times pass when they are told to."""

    def __init__(self, library: Path) -> None:
        self._clock = ctypes.CDLL(str(library))
        self._clock.read_clock.restype = ctypes.c_int64
        self.ticks = ctypes.c_uint64.in_dll(self._clock, "ticks")
        self.ns = ctypes.c_int64.in_dll(self._clock, "ns")
        self.answer_ticks = ctypes.c_uint64.in_dll(self._clock, "answer_ticks")
        self.asked = ctypes.c_uint64.in_dll(self._clock, "asked")
        self.answer_ticks.value = 60
        self.ticks.value, self.ns.value = 10**15, 10**14
        self.use(usable=True)

    def use(self, *, usable: bool) -> None:
        self._clock.use(usable)

    def off_ns(self) -> int:
        """Say by how much the clock is off."""
        return int(self._clock.read_clock()) - self.ns.value

    def run(self, ns: int, pace: float = 1.0) -> Iterator[int]:
        """Let time pass in small pieces, and say after each by how much the clock is off."""
        for _ in range(ns // PIECE_NS):
            self.ns.value += PIECE_NS
            self.ticks.value += round(PIECE_NS * TICKS_PER_NS * pace)
            yield self.off_ns()

    def largest_error_ns(self, ns: int, pace: float = 1.0) -> int:
        return max(abs(off) for off in self.run(ns, pace))


def build(folder: Path, *flags: str) -> Path:
    """Compile the simulated clock; each library that is loaded has a state of its own."""
    library = folder / "clock.so"
    include = ROOT / "instrument" / "tracelens_instrument"
    source = ROOT / "tests" / "support" / "simulated_clock.c"
    command = ["cc", "-shared", "-fPIC", "-O1", *flags, f"-I{include}", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Machine:
    """One whose counter is trusted by now."""
    made = Machine(Path(shutil.copy(library, tmp_path)))
    made.largest_error_ns(1500 * MS)
    return made


@with_counter
def test_a_steady_counter_rarely_asks_the_kernel(machine: Machine) -> None:
    """The kernel is asked every few milliseconds only, and times are its own."""
    before = machine.asked.value
    assert machine.largest_error_ns(2000 * MS) < EXACT_NS
    assert machine.asked.value - before <= 2000 * MS // FREEZE_NS + 1


@with_counter
@pytest.mark.parametrize(
    "ticks",
    [pytest.param(0, id="begins anew", marks=pytest.mark.slow), pytest.param(10**16, id="ran on")],
)
def test_a_suspended_machine_does_not_shift_the_clock(machine: Machine, ticks: int) -> None:
    """While the machine slept the counter began anew or ran on, and the monotonic clock stood."""
    machine.ticks.value = ticks
    assert abs(machine.off_ns()) < EXACT_NS
    assert machine.largest_error_ns(1500 * MS) < EXACT_NS


@with_counter
@pytest.mark.parametrize("pace", [1 + 500e-6, pytest.param(1 - 500e-6, marks=pytest.mark.slow)])
def test_a_slewed_clock_is_followed(machine: Machine, pace: float) -> None:
    """NTP changes the pace by what it may at most: that is noticed before it matters."""
    assert machine.largest_error_ns(FREEZE_NS + MS, pace) < 500e-6 * FREEZE_NS + EXACT_NS
    assert machine.largest_error_ns(1500 * MS, pace) < 500e-6 * FREEZE_NS + EXACT_NS
    assert machine.largest_error_ns(1500 * MS, pace) < EXACT_NS


@with_counter
def test_kernel_gives_up_the_counter(machine: Machine) -> None:
    """Where it takes its time from something slow from now on, so do we."""
    machine.answer_ticks.value = 3000
    machine.largest_error_ns(FREEZE_NS + MS)
    machine.ticks.value += 10**7  # what the counter says means nothing any more
    before = machine.asked.value
    assert set(machine.run(100 * MS)) == {0}
    assert machine.asked.value - before == 500


@with_counter
def test_time_never_goes_backwards(machine: Machine) -> None:
    """Neither where the pace changes nor where the counter is compared."""
    latest = 0
    for pace in (1.0, 1 + 300e-6, 1 - 300e-6, 1.0):
        for off in machine.run(300 * MS, pace):
            assert machine.ns.value + off >= latest
            latest = machine.ns.value + off


@with_counter
@pytest.mark.slow
def test_other_time_namespace(machine: Machine) -> None:
    """A restored or moved process may find an earlier time: it is the right one from now on."""
    machine.ns.value -= 10_000 * MS
    machine.largest_error_ns(FREEZE_NS + MS)
    assert machine.largest_error_ns(100 * MS) < EXACT_NS


@with_counter
@pytest.mark.slow
def test_counter_that_may_not_be_used(machine: Machine) -> None:
    """Where the kernel does not trust it, nor do we."""
    machine.use(usable=False)
    before = machine.asked.value
    assert set(machine.run(100 * MS, pace=1.7)) == {0}
    assert machine.asked.value - before == 500


@pytest.mark.slow
def test_other_processors_ask_the_kernel_each_time(tmp_path: Path) -> None:
    machine = Machine(build(tmp_path, "-DOTHER_PROCESSOR"))
    assert set(machine.run(100 * MS, pace=1.7)) == {0}
    assert machine.asked.value == 500
