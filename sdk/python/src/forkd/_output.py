"""The output of commands, and their results."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ._answers import parsed

Stream = Literal["stdout", "stderr"]

MAX_KEPT = 64 << 20  # bytes of each output that a result keeps; callbacks get everything


class _Ended:
    """The common parts of results."""

    stdout: Any
    stderr: Any
    exit_code: int
    outcome: str

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.outcome == "exited" and self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.outcome == "timeout"

    @property
    def stdout_bytes(self) -> bytes:
        return encoded(self.stdout)

    @property
    def stderr_bytes(self) -> bytes:
        return encoded(self.stderr)


@dataclass
class CommandResult(_Ended):
    """How a command ended, and its output as text. In text, surrogates (PEP 383) replace bytes that are not
    UTF-8, so nothing is lost: stdout_bytes has the output byte for byte."""

    stdout: str
    stderr: str
    exit_code: int
    """The command's exit code, or the code that a shell would report: 128 plus the number of the signal,
    124 for a timeout, 127 if the command was not found, and 126 if it could not be executed."""
    outcome: str = "exited"
    """exited, signaled, timeout, not_found or not_executable."""
    signal: str | None = None
    """The name of the signal that ended it, such as SIGKILL."""
    truncated: bool = False
    """An output had more than 64 MiB. The result has the beginning of the output."""
    error: str | None = None
    """What went wrong, in words; None if the command exited by itself."""


@dataclass
class BytesResult(_Ended):
    """How a command with text=False ended, and its output as bytes. The fields are those of CommandResult."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    outcome: str = "exited"
    signal: str | None = None
    truncated: bool = False
    error: str | None = None


def encoded(output: str | bytes) -> bytes:
    return output.encode("utf-8", "surrogateescape") if isinstance(output, str) else output


class Output(NamedTuple):
    """A part of a command's output."""

    stream: Stream
    data: str | bytes  # a string with text=True, else bytes


class Collector:
    """Receives the output of a command, passes it on, and keeps it for the result."""

    def __init__(
        self, text: bool, on_stdout: Callable[[Any], Any] | None = None, on_stderr: Callable[[Any], Any] | None = None
    ) -> None:
        self.text = text
        self.on: dict[Stream, Callable[[Any], Any] | None] = {"stdout": on_stdout, "stderr": on_stderr}
        self.kept: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.truncated = False
        decoder = codecs.getincrementaldecoder("utf-8")  # a part of the output may end inside a character
        self.decoders = {name: decoder("surrogateescape") for name in self.kept}

    def add(self, stream: Stream, data: bytes) -> list[Output]:
        """Keeps data. The caller must pass on the returned parts; see call."""
        kept = self.kept[stream]
        room = MAX_KEPT - len(kept)
        kept += data[:room]
        self.truncated |= len(data) > room
        part = self.decoders[stream].decode(data) if self.text else data
        return [Output(stream, part)] if part else []

    def rest(self) -> list[Output]:
        """Bytes at the end that are an incomplete character."""
        if not self.text:
            return []
        return [Output(s, part) for s, d in self.decoders.items() if (part := d.decode(b"", final=True))]

    def call(self, part: Output) -> Any:
        """Calls the function for a part of the output, and returns what it returns."""
        call = self.on[part.stream]
        return None if call is None else call(part.data)

    def result(self, end: dict[str, Any]) -> Any:
        out, err = bytes(self.kept["stdout"]), bytes(self.kept["stderr"])
        more = (
            end.get("exit_code", -1),
            end.get("outcome", "exited"),
            end.get("signal"),
            self.truncated,
            end.get("error"),
        )
        if not self.text:
            return BytesResult(out, err, *more)
        return CommandResult(out.decode("utf-8", "surrogateescape"), err.decode("utf-8", "surrogateescape"), *more)


def event_of(line: bytes) -> dict[str, Any]:
    """A message of a stream of lines; an empty dict for an empty line."""
    return parsed(line) if line else {}


def output_of(message: dict[str, Any]) -> Iterator[tuple[Stream, bytes]]:
    """The output in a message: text, or bytes if it is not UTF-8."""
    stream: Stream
    for stream in ("stdout", "stderr"):
        if text := message.get(stream):
            yield stream, text.encode()
        if coded := message.get(stream + "_base64"):
            yield stream, base64.b64decode(coded)
