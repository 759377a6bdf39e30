"""A daemon for tests: the real API over fake VMs (test/contract/rigd), each with a real agent."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SDK = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SDK / "tools"))

from forkd import Client, Sandbox  # noqa: E402


class Rig:
    """A running daemon, and its faults."""

    def __init__(self, program: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [program, "-bind", "127.0.0.1:0", "-keepalive", "1s", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.url, self.socket, self.token = said["url"], said["socket"], said["token"]
        self.snapshot, self.tmp, self.file = said["snapshot"], Path(said["tmp"]), said["file"]

    def fault(self, **fault: Any) -> None:
        """Makes the next requests fail; see test/contract/rigd."""
        request = urllib.request.Request(self.url + "/_rig/faults", data=json.dumps(fault).encode(), method="POST")
        urllib.request.urlopen(request, timeout=30).close()

    def restart(self, down_ms: int) -> None:
        """Closes all connections. When this returns, the daemon is not reachable; it is again after down_ms."""
        host, port = self.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            self.fault(restart={"down_ms": down_ms})
            connection.recv(1)  # waits for the end of the connection

    def wait(self) -> None:
        """Returns when the daemon answers."""
        while True:
            with contextlib.suppress(OSError):
                self.state()
                return
            time.sleep(0.02)

    def state(self) -> Any:
        with urllib.request.urlopen(self.url + "/_rig/state", timeout=30) as answer:
            return json.load(answer)

    def seen(self, request: str) -> int:
        """The number of requests, such as "POST /v1/forks", since the faults were cleared."""
        return int(self.state()["requests"].get(request, 0))

    def stop(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code


def program() -> str:
    if not (path := os.environ.get("FORKD_RIG")):
        pytest.exit(
            "FORKD_RIG is not set: go build -o /tmp/rigd ./test/contract/rigd, then FORKD_RIG=/tmp/rigd pytest; "
            "scripts/compat sdk-python does both",
            returncode=2,
        )
    return path


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    rig = Rig(program())
    os.environ.update(FORKD_URL=rig.url, FORKD_TOKEN=rig.token)
    yield rig
    assert rig.stop() == 0, "a request or an answer is not as api/openapi.yaml has it: see above"


@pytest.fixture(autouse=True)
def _no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "rig" in request.fixturenames:
        rig = request.getfixturevalue("rig")
        rig.wait()
        rig.fault(clear=True)


@pytest.fixture
def client(rig: Rig) -> Iterator[Client]:
    with Client(rig.url, token=rig.token) as client:
        yield client


@pytest.fixture
def sandbox(rig: Rig, client: Client) -> Iterator[Sandbox]:
    with Sandbox.create(rig.snapshot, client=client) as sandbox:
        yield sandbox
        rig.wait()
