"""`traced`: a span around every call of a function, which for the rest is as before."""

from __future__ import annotations

import functools
import inspect
import types

from tracelens.errors import InvalidArgument
from tracelens_instrument.core.failures import reraise_if_handlers, short_repr, warn_once
from tracelens_instrument.core.state import STATE
from tracelens_instrument.lifecycle import UNRECORDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import Any, Final, TypeVar

    from tracelens_instrument.core.spans import Span

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["decorated"]

_FUNCTIONS: Final = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CYTHON: Final = "cython_function_or_method"


def decorated(function: F, name: str | None, make_handle: Callable[[str], Span]) -> F:
    """Return `function` with a span around each call, or itself where nothing records.

    `make_handle` makes the span of a name: `name`, or else the function's own.

    Raises:
        InvalidArgument: it cannot be called.
    """
    candidate: Any = function
    if isinstance(candidate, staticmethod | classmethod):  # the descriptor stays outermost
        return type(candidate)(decorated(candidate.__func__, name, make_handle))  # type: ignore[return-value]  # F again
    if not callable(candidate):
        raise InvalidArgument(
            f"traced got {short_repr(candidate)}, expected a function, or a name for one."
        )
    if not STATE.is_on:
        UNRECORDED.add(name or _name(candidate))
        return function
    if not (isinstance(candidate, _FUNCTIONS) or type(candidate).__name__ == _CYTHON):
        warn_once(f"tl.traced records functions, and left alone {short_repr(candidate)}", "traced")
        return function
    wrapped: F = _wrap(function, make_handle(name or _name(candidate)))
    return wrapped


def _name(function: object) -> str:
    """Name a function as it names itself, if it does, else after its class."""
    try:
        name = getattr(function, "__qualname__", None)
    except Exception as error:  # noqa: BLE001 - a user's object may fail at whatever it is asked
        reraise_if_handlers(error)
        name = None
    return name if isinstance(name, str) else type(function).__qualname__


def _wrap(function: Any, span: Span) -> Any:
    """Return `function` with a span around each call, by what kind of function it is.

    A generator's span lasts from when it is first asked until it is used up.
    """
    if inspect.iscoroutinefunction(function):
        return _wrap_coroutine(function, span)
    if inspect.isasyncgenfunction(function):
        return _wrap_asynchronous_generator(function, span)
    if inspect.isgeneratorfunction(function):
        wrapper = _wrap_generator(function, span)
        is_awaitable = function.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE
        return types.coroutine(wrapper) if is_awaitable else wrapper
    return _wrap_call(function, span)


def _wrap_call(function: Any, span: Span) -> Any:
    """Return `function` with a span around each call; as `with span:`, but quicker."""
    enter: Callable[[], object] = span.__enter__
    leave: Callable[..., None] = span.__exit__

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        enter()
        try:
            result = function(*args, **kwargs)
        except BaseException:
            leave(BaseException, None, None)
            raise
        leave(None, None, None)
        return result

    return traced


def _wrap_coroutine(function: Any, span: Span) -> Any:
    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        with span():
            return await function(*args, **kwargs)

    return traced


def _wrap_generator(function: Any, span: Span) -> Any:
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with span():
            return (yield from function(*args, **kwargs))

    return traced


def _wrap_asynchronous_generator(function: Any, span: Span) -> Any:
    """Return `function` with a span from each generator's first value until its end."""

    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        """Yield what the function's generator yields; hand on what the caller sends and throws."""
        with span():
            generator = function(*args, **kwargs)
            awaitable = generator.__anext__()
            while True:
                try:
                    value = await awaitable
                except StopAsyncIteration:
                    return
                try:
                    message = yield value
                except GeneratorExit:
                    await generator.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - it is for the generator inside
                    awaitable = generator.athrow(error)
                else:
                    awaitable = generator.asend(message)

    return traced
