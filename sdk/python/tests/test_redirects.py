"""Neither a redirect nor a proxy of the environment sends the token or the request to another server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from forkd import AsyncClient, Client, Controller, ControllerError, ForkdError


class Servers:
    """A daemon that redirects every request, and the server that it redirects to."""

    def __init__(self) -> None:
        self.status = 307
        self.asked: list[tuple[str, str | None]] = []
        servers = self

        class Other(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                servers.asked.append((self.path, self.headers["Authorization"]))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"[]")

            do_POST = do_DELETE = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        class Daemon(Other):
            def do_GET(self) -> None:
                self.send_response(servers.status)
                self.send_header("Location", f"http://127.0.0.1:{servers.other.server_port}/internal")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_POST = do_DELETE = do_GET

        self.other = ThreadingHTTPServer(("127.0.0.1", 0), Other)
        self.daemon = ThreadingHTTPServer(("127.0.0.1", 0), Daemon)
        self.url = f"http://127.0.0.1:{self.daemon.server_port}"


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    for server in (made.other, made.daemon):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    for server in (made.other, made.daemon):
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(servers: Servers, status: int) -> None:
    servers.status = status
    with Client(servers.url, token="a-token") as client:
        with pytest.raises(ForkdError):
            client.sandboxes()
        with pytest.raises(ForkdError):
            client.fork("base")

    async def ask() -> None:
        async with AsyncClient(servers.url, token="a-token") as client:
            with pytest.raises(ForkdError):
                await client.sandboxes()

    asyncio.run(ask())
    controller = Controller(servers.url, "a-token")
    for call in (controller.list_sandboxes, lambda: controller.spawn_sandboxes("base")):
        with pytest.raises(ControllerError) as caught:
            call()
        assert caught.value.status == status
    assert servers.asked == []


def test_proxies_are_not_used(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{servers.other.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with Client(servers.url, token="a-token") as client, pytest.raises(ForkdError):
        client.sandboxes()
    with pytest.raises(ControllerError):
        Controller(servers.url, "a-token").list_sandboxes()
    assert servers.asked == []
