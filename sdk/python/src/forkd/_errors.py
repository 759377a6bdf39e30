"""The errors of the SDK without a code of the daemon; errors with a code are in _codes.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ._output import CommandResult

Happened = Literal["no", "unknown"]


class ForkdError(Exception):
    """The base of all errors of this package. Errors of the daemon have a code of docs/errors.md, and a
    class for it. If this version does not know the code, the class is that of the status, or this one."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        field: str | None = None,
        fix: str | None = None,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field
        """The wrong parameter, or the wrong field of the request."""
        self.fix = fix
        """What usually helps after an error with this code."""
        self.status = status
        """The HTTP status; None if there was no answer."""
        self.request_id = request_id
        """The id of the request in the daemon's log and audit log."""
        self.retry_after = retry_after
        """Seconds after which the same request may succeed; None if waiting does not help."""
        if fix and fix not in message:
            self.add_note(f"fix: {fix}")

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(ForkdError, ValueError):
    """An argument is wrong. No request was sent. field is the name of the parameter."""

    def __init__(self, message: str, *, field: str | None = None, **more: Any) -> None:
        super().__init__(message, **{"code": "invalid_argument", **more}, field=field)


class ConnectionFailedError(ForkdError, ConnectionError):
    """No daemon answered. happened is "no" if nothing was sent, and "unknown" if the daemon may have
    carried out the request."""

    def __init__(self, message: str, *, happened: Happened = "unknown", **more: Any) -> None:
        super().__init__(message, **{"code": "connection_failed", **more})
        self.happened: Happened = happened


class StreamBrokenError(ForkdError, ConnectionError):
    """A stream broke, because the daemon disappeared or sent nothing for too long."""

    def __init__(self, message: str, *, after: str | None = None, pid: int | None = None, **more: Any) -> None:
        super().__init__(message, **{"code": "stream_broken", **more})
        self.after = after
        """For events: the id of the last one. events(after=…) continues after it."""
        self.pid = pid
        """For a command: its process, which may still run."""


class PartialForkError(ForkdError):
    """Some children of a fork did not start. The others are in sandboxes, for the caller to use or kill."""

    def __init__(self, message: str, *, sandboxes: Any = (), failed: int = 0, **more: Any) -> None:
        super().__init__(message, **{"code": "partial_fork", **more})
        self.sandboxes: Any = sandboxes
        self.failed: int = failed


class CommandFailed(ForkdError):
    """A command with check=True did not succeed. result is its result."""

    def __init__(self, message: str, *, result: CommandResult | None = None, **more: Any) -> None:
        super().__init__(message, **{"code": "command_failed", **more})
        self.result = result


class BuildFailed(ForkdError):
    """A step of a build failed. The next build reuses the steps before it."""

    def __init__(self, message: str, *, step: str = "", number: int = 0, output: str = "", **more: Any) -> None:
        super().__init__(message, **{**more, "code": "build_failed"})
        self.step = step
        """The name of the step, such as "[stage-0 2/3] RUN make"."""
        self.number = number
        """The number of the step, from 0."""
        self.output = output
        """The end of the output of the step's command, at most 64 KiB."""


class InputClosedError(ForkdError, BrokenPipeError):
    """A process takes no more input, because it has closed its stdin or ended."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **{"code": "input_closed", **more})
