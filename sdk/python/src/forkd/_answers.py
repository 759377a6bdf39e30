"""Converts answers of the daemon to errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from . import _codes
from ._errors import ForkdError
from ._version import VERSION

MAX_ANSWER = 256 << 20  # bytes of an answer, or of a message of a stream
MAX_FILE = 1 << 30  # bytes of a file that is read as a whole


def parsed(text: str | bytes | bytearray, status: int | None = None) -> Any:
    """The JSON that a daemon has sent."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:  # RecursionError: it is nested too deeply
        raise ForkdError(
            f"the answer is no JSON ({e}): is that a forkd daemon?", code="bad_answer", status=status
        ) from e


def too_large(most: int, fix: str | None = None) -> ForkdError:
    """The error for an answer of more than most bytes."""
    return ForkdError(f"the answer has more than {most >> 20} MiB", code="bad_answer", fix=fix)


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> ForkdError:
    """The error for an answer."""
    try:
        problem = json.loads(body)
        problem = problem if isinstance(problem, dict) else {}
    except (ValueError, RecursionError):
        problem = {}
    message = (
        problem.get("detail")
        or problem.get("error")
        or body[:300].decode("utf-8", "replace").strip()
        or f"HTTP status {status}"
    )
    code = problem.get("code", "")
    if code == "no_such_route":
        message += f": the daemon may be older than this package, whose version is {VERSION}"
    return problem_of(
        message,
        code,
        status,
        field=problem.get("field"),
        fix=problem.get("fix"),
        request_id=headers.get("x-request-id"),
        retry_after=retry_after(headers),
    )


def problem_of(
    message: str,
    code: str,
    status: int,
    *,
    field: str | None = None,
    fix: str | None = None,
    request_id: str | None = None,
    retry_after: float | None = None,
) -> ForkdError:
    """The error for a code. If this version does not know the code, it is the error for the status."""
    cls = _codes.BY_CODE.get(code) or _codes.BY_STATUS.get(status) or ForkdError
    return cls(message, code=code, field=field, fix=fix, status=status, request_id=request_id, retry_after=retry_after)


def retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
