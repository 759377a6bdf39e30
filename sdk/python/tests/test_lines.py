"""Streams whose lines or events do not end."""

from __future__ import annotations

import time

import pytest

from forkd import _lines


def test_lines_in_parts() -> None:
    lines = _lines.Lines()
    assert [line for chunk in (b"a", b"b\r\nc\n\n", b"d", b"\n") for line in lines.feed(chunk)] == [
        b"ab",
        b"c",
        b"",
        b"d",
    ]


def test_a_line_without_an_end_takes_linear_time() -> None:
    """A function that copies the line again for each part takes minutes."""
    lines, part = _lines.Lines(), b"x" * 1024
    begun = time.process_time()
    with pytest.raises(ValueError, match="line of the daemon"):
        for _ in range(_lines.MAX_LINE // len(part) + 1):
            assert not list(lines.feed(part))
    assert time.process_time() - begun < 10


def test_an_event_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "MAX_LINE", 1000)
    events = _lines.ServerEvents()
    for _ in range(3):  # the bound is for one event, not for the stream
        assert [e.data for e in events.feed(b"data: " + b"x" * 900 + b"\n\n")] == ["x" * 900]
    with pytest.raises(ValueError, match="event of the daemon"):
        for _ in range(1000):
            list(events.feed(b"data\n"))
