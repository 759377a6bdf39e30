"""Parses the daemon's streams from bytes: lines of JSON, and server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MAX_LINE = 64 << 20  # bytes: no line of a daemon is longer


class Lines:
    """Splits bytes into lines. Only a line feed ends a line, because JSON may contain Unicode's other separators."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete with chunk, without their ends."""
        if len(self.rest) + len(chunk) > MAX_LINE:
            raise ValueError("a line of the daemon has more than 64 MiB")
        if b"\n" not in chunk:
            self.rest += chunk
            return []
        *lines, rest = (bytes(self.rest) + chunk if self.rest else chunk).split(b"\n")
        self.rest = bytearray(rest)
        return [line.removesuffix(b"\r") for line in lines]


class ServerEvent(NamedTuple):
    id: str
    type: str
    data: str  # empty if only the id has changed


class ServerEvents:
    """Parses server-sent events from lines."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.id, self.type, self.data = "", "", list[str]()
        self.size = 0  # bytes of the lines of the event

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        for line in self.lines.feed(chunk):
            name, _, value = line.decode("utf-8", "replace").partition(":")
            value = value.removeprefix(" ")
            self.size += len(line) + 1
            if self.size > MAX_LINE:
                raise ValueError("an event of the daemon has more than 64 MiB")
            if not line:
                yield ServerEvent(self.id, self.type, "\n".join(self.data))
                self.type, self.data, self.size = "", [], 0
            elif name == "id":
                self.id = value
            elif name == "event":
                self.type = value
            elif name == "data":
                self.data.append(value)
