"""The output of a command, up to a limit."""

from __future__ import annotations

from collections.abc import Callable

MERGED = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
"""Prefix of the argv of a command. It redirects stderr to stdout, so that both keep their order."""


class Capture:
    """A callback for output that keeps the first limit bytes. If there are more, it sets truncated. If exceeded is
    given, it is called with the text so far, and the exception that it returns is raised, which ends the command."""

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
