"""First paints in a browser that no debugger watches, as a user's is.

Playwright has Chromium report every request and exception, with where in the source it came from. For
that the library of charts is parsed again while it is loaded, which takes as long as half of the rest
of a page. So Chromium is driven by its own pipe here, and asked for nothing but one value.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

from support.web.browser import FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Unwatched", "unwatched"]

_BLANK: Final = "about:blank"
_TO_CHROMIUM, _FROM_CHROMIUM = 3, 4  # the descriptors that it takes for its pipe
_END: Final = b"\0"
_ANSWER_S: Final = 60


class Unwatched:
    """A running Chromium; each page is opened in a profile of its own, with nothing in its cache."""

    def __init__(self, send: IO[bytes], receive: IO[bytes]) -> None:
        self._send, self._receive = send, receive
        self._numbers = itertools.count(1)
        self._received = b""

    @contextmanager
    def page(self, url: str, wanted: str) -> Iterator[Any]:
        """Open an address, yield what a promise (JavaScript) comes to there, and close it."""
        profile = self._ask("Target.createBrowserContext")["browserContextId"]
        target = self._ask("Target.createTarget", url=_BLANK, browserContextId=profile)["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask("Page.navigate", session, url=url)
        answer = self._ask(
            "Runtime.evaluate",
            session,
            expression=wanted,
            awaitPromise=True,
            returnByValue=True,
            timeout=1000 * _ANSWER_S,
        )
        yield answer["result"]["value"]
        self._ask("Target.disposeBrowserContext", browserContextId=profile)

    def close(self) -> None:
        """End it."""
        self._ask("Browser.close")

    def _ask(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and wait for its answer.

        Raises:
            RuntimeError: Chromium refused, or has ended.
        """
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": given}
        command |= {"sessionId": session} if session else {}
        self._send.write(json.dumps(command).encode() + _END)
        self._send.flush()
        for answer in iter(self._next, None):
            if answer.get("id") == number:
                if "result" not in answer:
                    raise RuntimeError(f"Chromium answered {method} with {answer}")
                result: dict[str, Any] = answer["result"]
                return result
        raise RuntimeError(f"Chromium ended before it answered {method}")

    def _next(self) -> dict[str, Any] | None:
        """Return the next message; None at the end."""
        while _END not in self._received:
            received_bytes = os.read(self._receive.fileno(), 1 << 16)
            if not received_bytes:
                return None
            self._received += received_bytes
        message, _, self._received = self._received.partition(_END)
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def unwatched() -> Iterator[Unwatched]:
    """Start the system's Chromium, driven by a pipe."""
    path = shutil.which("chromium")
    assert path, "Chromium is missing"
    their_end, to_chromium = os.pipe()
    from_chromium, our_end = os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        command = [path, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", _BLANK]
        moved = f'exec "$@" {_TO_CHROMIUM}<&{their_end} {_FROM_CHROMIUM}>&{our_end}'
        process = subprocess.Popen(
            ["bash", "-c", moved, "bash", *command],
            pass_fds=(their_end, our_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_end)
        os.close(our_end)
        try:
            with os.fdopen(to_chromium, "wb") as send, os.fdopen(from_chromium, "rb") as receive:
                browser = Unwatched(send, receive)
                yield browser
                browser.close()
            process.wait(_ANSWER_S)
        finally:
            process.kill()
            process.wait()
