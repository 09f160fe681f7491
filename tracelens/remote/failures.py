"""What servers and networks do to a reader, as one sentence each; no password, key or token is in one.

Each protocol has its own library, with errors of its own: they are distinguished by their names, and by
those of their causes.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tracelens.errors import TraceLensError, TraceNotFound, UnusableInput
from tracelens.remote.address import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_NO_CREDENTIALS: Final = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
}
_UNREACHABLE: Final = {
    *("ConnectionError", "TimeoutError", "gaierror"),  # of Python
    *("ClientConnectionError", "ClientPayloadError"),  # of aiohttp
    *("EndpointConnectionError", "HTTPClientError"),  # of botocore
}
_STATUSES_OF_REFUSAL: Final = (401, 403)
_MAX_LETTERS_OF_REASON: Final = 200  # letters of what a server says


@contextmanager
def explain_errors(address: str) -> Iterator[None]:
    """Turn any error of a file system of fsspec into one sentence about an address.

    Errors of the disk that is written to stay what they are.

    Raises:
        TraceLensError: something was raised.
    """
    try:
        yield
    except TraceLensError:
        raise
    except Exception as error:  # each protocol has its own
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        raise _explain(
            error, f"'{hide_secrets(address)}'"
        ) from None  # what it says may hold secrets


def _explain(error: Exception, quoted_address: str) -> TraceLensError:
    """Return the error for what a server or a network did."""
    causes = list(_iterate_causes(error))
    names = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    reason = _describe(causes[-1])
    if names & _NO_CREDENTIALS:
        return UnusableInput(
            f"No credentials were found for {quoted_address}: set those of its provider, such as "
            "AWS_PROFILE or AWS_ACCESS_KEY_ID (docs/remote.md)."
        )
    if names & _UNREACHABLE:
        return UnusableInput(
            f"The server of {quoted_address} cannot be reached, or went away ({reason}): check the "
            "address and the network, then run it again; what was fetched is kept."
        )
    if "PermissionError" in names or any(
        _status_of(cause) in _STATUSES_OF_REFUSAL for cause in causes
    ):
        return UnusableInput(
            f"The server refuses access to {quoted_address} ({reason}): check the credentials and "
            "what they allow (docs/remote.md)."
        )
    if isinstance(error, FileNotFoundError) and all(_status_of(c) in (None, 404) for c in causes):
        detail = "" if isinstance(causes[-1], FileNotFoundError) else f" ({reason})"
        return TraceNotFound(
            f"There is no {quoted_address}{detail}: expected a trace folder or a table of spans; "
            "check the address."
        )
    return UnusableInput(
        f"{quoted_address} cannot be read ({reason}): the server or the network failed; run it "
        "again later."
    )


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it says it comes from, outermost first."""
    seen_ids: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen_ids:
        seen_ids.add(id(cause))
        yield cause
        cause = cause.__cause__


def _status_of(error: BaseException) -> int | None:
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _describe(error: BaseException) -> str:
    """Return the text of an error in one line, without secrets."""
    message = " ".join(hide_secrets(str(error)).split()).rstrip(".")
    name = type(error).__name__
    return f"{name}: {message[:_MAX_LETTERS_OF_REASON]}" if message else name
