"""Pulls and pushes, against a server that answers as the daemon does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from forkd import AsyncClient, Client, InvalidArgumentError, Snapshot, StreamBrokenError
from forkd.errors import BY_CODE
from forkd.types import HubFile

FILES = [
    {"name": "memory.layer.0", "state": state, "bytes": 20, "done": done}
    for state, done in (("pulling", 9), ("pulled", 20))
]
RESULT = {
    "digest": "sha256:" + "0" * 64,
    "bytes": 20,
    "moved_bytes": 20,
    "ms": 1.5,
    "reference": "r.example/a@sha256:0",
}


class Daemon(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                daemon.asked.append((self.path, body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-ndjson")
                self.end_headers()
                for line in daemon.lines:
                    self.wfile.write(json.dumps(line).encode() + b"\n")

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.client = Client(f"http://127.0.0.1:{self.server_port}", token="t")

    def answers(self, *last: dict[str, Any]) -> None:
        self.lines = [{"keepalive": True}, *({"file": f} for f in FILES), *last]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.client.close()
    made.shutdown()
    made.server_close()


def test_a_pull_reports_its_progress_and_returns_the_snapshot(daemon: Daemon) -> None:
    daemon.answers({"result": RESULT | {"snapshot": {"tag": "numpy", "dir": "/d"}}})
    seen: list[HubFile] = []
    snapshot = Snapshot.pull(
        "r.example/a:1",
        client=daemon.client,
        tag="numpy",
        lazy=True,
        reuse=True,
        trust="off",
        mirrors=["m.example/a"],
        registry_auth={"r.example": {"username": "u", "password": "p"}},
        on_progress=seen.append,
    )
    assert snapshot.tag == "numpy" and snapshot.pulled is not None and snapshot.pulled.moved_bytes == 20
    assert [(f.name, f.state, f.done) for f in seen] == [
        ("memory.layer.0", "pulling", 9),
        ("memory.layer.0", "pulled", 20),
    ]
    assert daemon.asked == [
        (
            "/v1/pulls",
            {
                "reference": "r.example/a:1",
                "tag": "numpy",
                "lazy": True,
                "reuse": True,
                "trust": "off",
                "mirrors": ["m.example/a"],
                "registry_auth": {"r.example": {"username": "u", "password": "p"}},
            },
        )
    ]


def test_a_push_returns_the_reference_with_the_digest(daemon: Daemon) -> None:
    daemon.answers({"result": RESULT})
    assert daemon.client.snapshots.push("numpy", "r.example/a:1", record_hot=True).reference == RESULT["reference"]
    assert Snapshot(daemon.client, "numpy").push("r.example/a:1").digest == RESULT["digest"]
    assert daemon.asked == [
        ("/v1/snapshots/numpy/push", {"reference": "r.example/a:1", "record_hot": True}),
        ("/v1/snapshots/numpy/push", {"reference": "r.example/a:1"}),
    ]


def test_a_failed_or_broken_transfer_is_an_error(daemon: Daemon) -> None:
    daemon.answers({"error": "it exists", "code": "snapshot_exists", "status": 409})
    with pytest.raises(BY_CODE["snapshot_exists"], match="it exists"):
        daemon.client.snapshots.pull("r.example/a:1")
    for last in ([], [{"result": RESULT}]):  # without a result, and without a snapshot
        daemon.answers(*last)
        with pytest.raises(StreamBrokenError):
            daemon.client.snapshots.pull("r.example/a:1")
    asked = len(daemon.asked)
    for wrong in (
        {"trust": "no"},
        {"mirrors": "m.example/a"},
        {"mirrors": ["m"] * 5},
        {"tag": "A/B"},
        {"registry_auth": []},
    ):
        with pytest.raises(InvalidArgumentError):
            daemon.client.snapshots.pull("r.example/a:1", **wrong)
    assert len(daemon.asked) == asked


def test_a_pull_of_the_asynchronous_client(daemon: Daemon) -> None:
    daemon.answers({"result": RESULT | {"snapshot": {"tag": "numpy", "dir": "/d"}}})
    seen: list[str] = []

    async def told(file: HubFile) -> None:
        seen.append(file.state)

    async def run() -> None:
        async with AsyncClient(daemon.client.url, token="t") as client:
            assert (await client.snapshots.pull("r.example/a:1", on_progress=told)).tag == "numpy"

    asyncio.run(run())
    assert seen == ["pulling", "pulled"]
