"""The errors of the SDK that are not of a code of the daemon; those are in _codes.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ._output import CommandResult

Happened = Literal["no", "unknown"]


class ForkdError(Exception):
    """What every error of this package is. The daemon's have a code of docs/errors.md, and a class for
    it; a code that this version does not know has the class of its status, or this one."""

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
        """The parameter, or the field of the request, that is wrong."""
        self.fix = fix
        """What helps against most errors of the code."""
        self.status = status
        """The HTTP status; None if there was no answer."""
        self.request_id = request_id
        """What the daemon's log and audit log call the request."""
        self.retry_after = retry_after
        """Seconds after which the same request may succeed; None if waiting does not help."""
        if fix and fix not in message:
            self.add_note(f"fix: {fix}")

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(ForkdError, ValueError):
    """An argument is wrong, and nothing was sent. field is the name of the parameter."""

    def __init__(self, message: str, *, field: str | None = None, **more: Any) -> None:
        super().__init__(message, **{"code": "invalid_argument", **more}, field=field)


class ConnectionFailedError(ForkdError, ConnectionError):
    """No daemon answered. happened is "no" if nothing was sent, and "unknown" if the request may have
    been carried out."""

    def __init__(self, message: str, *, happened: Happened = "unknown", **more: Any) -> None:
        super().__init__(message, **{"code": "connection_failed", **more})
        self.happened: Happened = happened


class StreamBrokenError(ForkdError, ConnectionError):
    """A stream ended in the middle: the daemon went away, or said nothing for longer than it ever does."""

    def __init__(self, message: str, *, after: str | None = None, pid: int | None = None, **more: Any) -> None:
        super().__init__(message, **{"code": "stream_broken", **more})
        self.after = after
        """Of events: the id of the last one. events(after=…) goes on behind it."""
        self.pid = pid
        """Of a command: its process, which may still run."""


class PartialForkError(ForkdError):
    """Some children of a fork did not start. Those that live are in sandboxes, and are the caller's to
    use or to kill."""

    def __init__(self, message: str, *, sandboxes: Any = (), failed: int = 0, **more: Any) -> None:
        super().__init__(message, **{"code": "partial_fork", **more})
        self.sandboxes: Any = sandboxes
        self.failed: int = failed


class CommandFailed(ForkdError):
    """A command that was run with check=True did not succeed. result is how it ended."""

    def __init__(self, message: str, *, result: CommandResult | None = None, **more: Any) -> None:
        super().__init__(message, **{"code": "command_failed", **more})
        self.result = result


class BuildFailed(ForkdError):
    """A step of a build failed. Steps that were done before are not done again by the next build."""

    def __init__(self, message: str, *, step: str = "", number: int = 0, output: str = "", **more: Any) -> None:
        super().__init__(message, **{**more, "code": "build_failed"})
        self.step = step
        """Its name, such as "[stage-0 2/3] RUN make"."""
        self.number = number
        """Its number, from 0."""
        self.output = output
        """The end of what its command wrote, at most 64 KiB."""


class InputClosedError(ForkdError, BrokenPipeError):
    """A process takes no more input: it has closed its stdin, or ended."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **{"code": "input_closed", **more})
