"""A daemon or a sandbox whose answers do not end, or are no JSON."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forkd import Client, Controller, ForkdError, Sandbox, StreamBrokenError, _answers
from forkd._sync import _files
from forkd._sync._socket import Socket


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_answers, "MAX_ANSWER", 1 << 20)


@pytest.fixture
def endless() -> Iterator[str]:
    """The URL of a daemon whose answers do not end."""

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" " * 65536)
            except OSError:
                pass  # the client has closed the connection

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_answer_without_an_end(endless: str) -> None:
    with Client(endless, token="t") as client, pytest.raises(ForkdError, match="more than 1 MiB") as caught:
        client.sandboxes()
    assert caught.value.code == "bad_answer"
    with pytest.raises(ForkdError, match="more than 1 MiB"):
        Controller(endless, token="t").list_snapshots()


def test_a_large_file_is_read_as_a_stream(rig: Any, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(rig.tmp) / "large"
    path.write_bytes(b"x" * (3 << 20))
    assert len(sandbox.files.read_bytes(path)) == 3 << 20  # a file may be larger than other answers
    monkeypatch.setattr(_files, "MAX_FILE", 2 << 20)
    with pytest.raises(ForkdError, match="more than 2 MiB") as caught:
        sandbox.files.read(path)
    assert caught.value.fix is not None and "read_stream" in caught.value.fix
    with sandbox.files.read_stream(path) as parts:
        assert sum(map(len, parts)) == 3 << 20


def test_a_large_directory_is_unpacked(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(b"x" * (3 << 20))
    assert len(sandbox.files.read_tree(tree)) > 3 << 20  # an archive may be larger than other answers
    monkeypatch.setattr(_files, "MAX_FILE", 2 << 20)
    with pytest.raises(ForkdError, match="more than 2 MiB") as caught:
        sandbox.files.read_tree(tree)
    assert caught.value.code == "bad_answer" and caught.value.fix is not None and "`to`" in caught.value.fix
    sandbox.files.read_tree(tree, tmp_path / "in")
    assert (tmp_path / "in/large").stat().st_size == 3 << 20


class Stream:
    """A connection on which a WebSocket's server sends a message of many parts."""

    def __init__(self, part: bytes) -> None:
        self.next, self.rest = bytes([0x01, len(part)]) + part, bytes([0x00, len(part)]) + part

    def read(self, most: int, timeout: float | None = None) -> bytes:
        data, self.next = self.next, self.rest * 1000
        return data


@pytest.mark.parametrize("part", [b"x" * 100, b""])
def test_a_message_without_an_end(part: bytes) -> None:
    with pytest.raises(StreamBrokenError, match="more than 1 MiB"):
        Socket(Stream(part), ExitStack(), "the stream", 1.0).receive()  # type: ignore[arg-type]


def test_json_that_is_nested_too_deeply() -> None:
    deep = b"[" * 200_000
    with pytest.raises(ForkdError, match="no JSON"):
        _answers.parsed(deep)
    assert _answers.error_of(500, {}, deep).status == 500


@pytest.mark.parametrize("said", ["nan", "inf", "-1", "soon"])
def test_a_time_that_cannot_be_waited_for(said: str) -> None:
    assert _answers.error_of(503, {"retry-after": said}, b"{}").retry_after is None
    assert _answers.error_of(503, {"retry-after": "1.5"}, b"{}").retry_after == 1.5
