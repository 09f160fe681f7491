"""A progress bar on the terminal for long work; silent where nobody watches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress(what: str, then: str | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with (done, total); the bar is on standard error and goes away.

    `then` says what goes on once all is done that is counted.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        rest = bar.add_task(then or "", total=None, visible=False)

        def tell(done: int, total: int) -> None:
            over = then is not None and done >= total
            bar.update(task, completed=done, total=total, visible=not over)
            bar.update(rest, visible=over)

        yield tell
