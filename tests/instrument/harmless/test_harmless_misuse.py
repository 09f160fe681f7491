"""Spans used wrongly, or in the strangest places, cost the training nothing."""

from pathlib import Path

import pytest
from support.launch.harmless import both_recorders, harmless
from support.launch.recording import read_all

pytestmark = pytest.mark.end_to_end

ENDS = """
import threading
def elsewhere(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

SPAN.__exit__(None, None, None)          # never begun
token = SPAN.begin()
token.end(); token.end(); token.discard(); token.end(True)
SPAN.begin()                             # never ended
token = SPAN.begin()
elsewhere(token.end)                     # ended in another thread
SPAN.__enter__()
elsewhere(lambda: SPAN.__exit__(None, None, None))
with SPAN, SPAN, SPAN():
    SPAN.__exit__(None, None, None)      # once too often
step = tl.step(1)
with step:
    with step:                           # inside itself
        pass
step.__exit__(None, None, None)
tl.step(2)                               # never entered
tl.step(3).__enter__()                   # never left
for error in (KeyError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, MemoryError):
    try:
        with tl.step(4), SPAN, SPAN(nbytes=1):
            raise error("mine")
    except error as caught:
        print(repr(caught), caught.__cause__, caught.__context__)
train()
"""

ASYNCHRONOUS = """
import asyncio, contextlib, types

@tl.traced
async def visit(number):
    with SPAN(), tl.step(number):
        await asyncio.sleep(0)
        return number

@tl.traced
async def numbers(count):
    try:
        for number in range(count):
            got = yield number
            if got:
                yield got * 10
    except ValueError as error:
        yield str(error)
    finally:
        print("closed")

@tl.traced
def plain(count):
    try:
        for number in range(count):
            got = yield number
            if got:
                yield got * 10
    except ValueError as error:
        yield str(error)
    return "over"

@tl.traced
@types.coroutine
def old_style():
    yield
    return "old style"

def outer():
    print((yield from plain(2)))

async def main():
    print(await asyncio.gather(*map(visit, range(5))))
    print([number async for number in numbers(4)])
    generator = numbers(9)
    print(await generator.__anext__(), await generator.asend(7), await generator.__anext__())
    print(await generator.athrow(ValueError("thrown")))
    await generator.aclose()
    left = numbers(3)
    print(await anext(left))
    task = asyncio.create_task(visit(1))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    print(await old_style())
    del left

asyncio.run(main())
generator = plain(9)
print(next(generator), generator.send(3), next(generator), generator.throw(ValueError("thrown")))
print(list(outer()))
abandoned = plain(3)
next(abandoned)
with SPAN:
    generators = [plain(3) for _ in range(3)]
    print([next(one) for one in generators], [next(one) for one in reversed(generators)])
"""

DECORATED = """
import functools, inspect

class Model:
    @tl.traced
    @staticmethod
    def fixed(value): return value

    @tl.traced
    @classmethod
    def made(cls, value): return cls.__name__, value

    @staticmethod
    @tl.traced
    def inner(value): return value

    @tl.traced
    def method(self, value, *, more=1): return self.__class__.__name__, value, more

    @property
    @tl.traced
    def size(self): return 3

    __call__ = tl.traced(lambda self: "called")

@tl.traced
class Plain:
    pass

@tl.traced
@functools.lru_cache
def cached(value): return value

@tl.traced
@functools.singledispatch
def dispatched(value): return "any"
@dispatched.register
def _(value: int): return "int"

model = Model()
print(model.fixed(1), Model.fixed(2), model.made(3), Model.made(4), model.inner(5))
print(model.method(6), Model.method(model, 7, more=2), model.size, model())
print(isinstance(Plain(), Plain), issubclass(Plain, object), inspect.isclass(Plain))
print(cached(1), cached.cache_info().misses, cached.cache_clear(), dispatched(1), dispatched("x"))
partial = tl.traced(functools.partial(int, base=2))
print(partial("11"), partial.func is int, tl.traced("named")(len)("abc"), tl.traced(model.method)(8))
print(inspect.signature(model.method), Model.method.__name__, Model.method.__doc__)
for wrong in (5, [], object()):
    try:
        tl.traced(wrong)
    except Exception as error:
        print(type(error).__name__)
"""

DEEP = """
sys.setrecursionlimit(3000)
def deep(number):
    with SPAN:
        with SPAN(nbytes=number):
            return 1 + deep(number - 1) if number else 0
print(deep(900))

@tl.traced
def traced(number):
    return 1 + traced(number - 1) if number else 0
print(traced(900))

def endless(number):
    with SPAN, SPAN():
        return endless(number + 1)
for _ in range(3):
    try:
        endless(0)
    except RecursionError:
        print("too deep")
train()
"""

AGAIN = """
import threading
def begin(name):
    if RECORDS: tl.start(FOLDER + "/" + name)
begin("trace"); begin("trace")
train()
tl.stop(); tl.stop()
with tl.step(1), SPAN, SPAN():
    tl.instant("after the end")
thread = threading.Thread(target=begin, args=("thread",))
thread.start(); thread.join()
train()
with SPAN:
    tl.stop()
thread = threading.Thread(target=tl.stop)
begin("again")
token = SPAN.begin()
thread.start(); thread.join()
token.end()
train()
for number in range(5):
    begin("often")
    with SPAN: begin("often")
    tl.stop()
"""

COLLECTED = """
import gc, weakref
calls = []
def collecting(phase, info):
    with SPAN(), tl.step(1):
        tl.instant("collecting")
        calls.append(phase)

class Held:
    def __init__(self): self.me = self
    def __del__(self):
        with SPAN: tl.counter("deleted", 1.0)

gc.callbacks.append(collecting)
for _ in range(300):
    Held()
    tl.span(f"made {_}")
gc.collect()
weakref.finalize(Held(), train)
gc.collect()
gc.callbacks.clear()
train()
"""

SETTINGS = """
import decimal, locale, threading, warnings
def refuse(*_arguments, **_named): raise ValueError("no warnings here")
warnings.showwarning = warnings._showwarnmsg_impl = refuse
sys.stderr = None
tl.instant("x", kind="nothing of the kind")
sys.stderr = object()
tl.instant("y"); tl.span("z"); tl.counter("c", "no number")
sys.stderr = sys.__stderr__
train()
"""

PROGRAMS = {
    "ends": (ENDS, 0),
    "asynchronous": (ASYNCHRONOUS, 0),
    "decorated": (DECORATED, 1),
    "deep": (DEEP, 0),
    "again": (AGAIN, 0),
    "collected": (COLLECTED, 0),
    "settings": (SETTINGS, 0),
}


NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in {"again", "deep"} else ())
    for name in PROGRAMS
]


@both_recorders
@pytest.mark.parametrize("name", NAMES)
def test_training_is_as_without(tmp_path: Path, recorder: str, name: str) -> None:
    """It prints the same and ends the same, and its recording is whole."""
    program, warnings = PROGRAMS[name]
    ran = harmless(program, tmp_path, recorder, starts=name != "again")
    assert len(ran.warned) == warnings, ran.errors
    recordings = read_all(tmp_path / "trace")
    assert all(one.side.complete for one in recordings)
    assert any(len(one.events) > 10 for one in recordings)
