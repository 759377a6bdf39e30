"""The output of a command, up to a limit."""

from __future__ import annotations

from collections.abc import Callable

MERGED = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
"""Begins the argv of a command whose stderr is its stdout, so that the order of its output is kept."""


class Capture:
    """A callback for output that keeps the first bytes. If there are more, it raises what exceeded returns, which ends
    the command; without exceeded it only notes that."""

    def __init__(self, limit: int, exceeded: Callable[[str], Exception] | None = None) -> None:
        self._limit, self._exceeded, self._bytes, self.truncated = limit, exceeded, bytearray(), False

    def __call__(self, data: bytes) -> None:
        room = self._limit - len(self._bytes)
        self._bytes += data[:room]
        if len(data) > room:
            self.truncated = True
            if self._exceeded is not None:
                raise self._exceeded(self.text)

    @property
    def data(self) -> bytes:
        """The output."""
        return bytes(self._bytes)

    @property
    def text(self) -> str:
        """The output, with U+FFFD in place of bytes that are not UTF-8."""
        return self._bytes.decode("utf-8", "replace")
