# Made from _async/_transport.py by tools/unasync.py. Do not edit.
"""Sends requests to the daemon: connections, repetitions, errors, and streams."""

from __future__ import annotations

import json as jsonlib
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _answers
from .._address import Address, what_helps
from .._errors import ConnectionFailedError, ForkdError, StreamBrokenError
from .._version import VERSION
from . import _runtime

if TYPE_CHECKING:
    import httpx2

Params = Sequence[tuple[str, str]]

CONNECT = 10.0  # seconds
IDLE = 100.0  # seconds: the daemon sends something at least every 30 s, even on an idle stream


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return _answers.parsed(self.body, self.status)


def pool_options(address: Address) -> dict[str, Any]:
    """The settings of a pool. There may be as many connections as there are streams, but only a limited
    number of idle ones is kept, and for a limited time. The kernel ends a connection whose peer has
    disappeared."""
    import httpx2

    alive = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    if address.socket is None:
        alive += [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        ]
    return {
        "verify": address.tls(),
        "trust_env": False,
        "uds": address.socket,
        "socket_options": alive,
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=30),
    }


class Transport:
    """Sends requests to one daemon."""

    def __init__(self, address: Address, timeout: float, retries: int) -> None:
        self.address, self.timeout, self.retries = address, timeout, retries
        self.idle = IDLE  # seconds that a stream may be silent
        self.pools = _runtime.Pools(address, pool_options)
        self.always = [(b"User-Agent", f"forkd-python/{VERSION}".encode()), (b"Accept-Encoding", b"identity")]
        if address.token:
            self.always.append((b"Authorization", f"Bearer {address.token}".encode()))
        self.url = lru_cache(maxsize=256)(self.parsed)

    def close(self) -> None:
        self.pools.close()

    def call(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        params: Params = (),
        content: Any = None,
        once: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        most: int | None = None,
        larger: str | None = None,
    ) -> Answer:
        """Sends a request and returns its answer, whose status is a success, and whose body has at most
        `most` bytes, by default MAX_ANSWER. larger is the fix in the error for a larger body.

        A GET is sent again if the connection fails or the daemon says when to repeat it: at most retries
        times, and within the timeout. With once, a POST is sent again in the same cases; it has an
        Idempotency-Key. No other request is sent again."""
        if once:
            headers = {**(headers or {}), "Idempotency-Key": str(uuid.uuid4())}
        limit = timeout or self.timeout
        deadline = time.monotonic() + limit
        left = self.retries if once or method == "GET" else 0
        while True:
            try:
                with self.stream(
                    method, path, params=params, content=content, headers=headers, json=json, idle=limit
                ) as response:
                    body = self.body(response, limit, most, larger)
                    return Answer(response.status_code, response.headers, body)
            except (ConnectionFailedError, ForkdError) as e:
                failed_at_all = isinstance(e, ConnectionFailedError)
                wait = (
                    0.1 * 4 ** (self.retries - left)
                    if failed_at_all
                    else e.retry_after
                    if e.status in (429, 503)
                    else None
                )
                if not left or wait is None or time.monotonic() + wait > deadline:
                    raise
            left -= 1
            _runtime.sleep(wait)

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params = (),
        content: Any = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        idle: float | None = -1,
        switch: bool = False,
    ) -> Iterator[httpx2.Response]:
        """Sends a request, and opens its answer, which has a successful status, or 101 with switch. idle is
        how long the answer may be silent, in seconds. By default that is the limit of all streams; None: no
        limit."""
        import httpx2

        if idle == -1:
            idle = self.idle
        request = self.request(method, path, params, content, headers or {}, json)
        request.extensions["timeout"] = {"connect": CONNECT, "read": idle, "write": idle}
        pool = self.pools.get()
        try:
            response = pool.handle_request(request)
        except httpx2.TransportError as e:
            raise self.lost(e, idle) from e
        try:
            if response.status_code >= 300 or (response.status_code == 101) != switch:
                body = b"" if response.status_code == 101 else self.body(response, idle)
                raise _answers.error_of(response.status_code, response.headers, body)
            yield response
        finally:
            response.close()

    def request(
        self, method: str, path: str, params: Params, content: Any, headers: Mapping[str, str], json: Any
    ) -> httpx2.Request:
        """A request whose body is bytes, JSON, or an iterable of bytes. Its headers are made here, because
        httpx2 would take longer for them than for the rest of the request."""
        import httpx2

        if params:
            path += "?" + str(httpx2.QueryParams(list(params)))
        url = self.url(path)
        sent = [(b"Host", url.netloc), *self.always]
        for name, value in headers.items():
            sent.append((name.encode(), value.encode()))
        if json is not None:
            content = jsonlib.dumps(json).encode()
            sent.append((b"Content-Type", b"application/json"))
        if content is not None and not isinstance(content, bytes):
            return httpx2.Request(method, url, headers=sent, content=content)
        if content is not None or method != "GET":
            sent.append((b"Content-Length", b"%d" % len(content or b"")))
        return httpx2.Request(method, url, headers=sent, stream=httpx2.ByteStream(content or b""))

    def parsed(self, path: str) -> httpx2.URL:
        import httpx2

        return httpx2.URL(self.address.base + path)

    def body(
        self, response: httpx2.Response, limit: float | None, most: int | None = None, larger: str | None = None
    ) -> bytes:
        """The whole body of an answer; see call."""
        parts, size, most = list[bytes](), 0, _answers.MAX_ANSWER if most is None else most
        try:
            for part in response.iter_raw():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise _answers.too_large(most, larger)
        except ForkdError:
            raise
        except Exception as e:
            raise self.lost(e, limit) from e
        return b"".join(parts)

    def lost(self, e: Exception, limit: float | None) -> Exception:
        """The error for a request that got no answer."""
        import httpx2

        where = f"no forkd daemon answers at {self.address.url}"
        if isinstance(e, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol)):
            return ConnectionFailedError(
                f"{where}: {str(e) or type(e).__name__}; nothing was sent", happened="no", fix=what_helps(self.address)
            )
        if isinstance(e, httpx2.ReadTimeout):
            return ConnectionFailedError(
                f"the daemon at {self.address.url} did not answer within {limit:g} s; it may be done"
            )
        if isinstance(e, httpx2.TransportError):
            return ConnectionFailedError(
                f"the daemon at {self.address.url} broke off ({str(e) or type(e).__name__}); it may be done"
            )
        return e

    def chunks(self, response: httpx2.Response, what: str) -> Iterator[bytes]:
        """The bytes of a stream, which must not be compressed. If the stream breaks off, the iteration raises an
        error."""
        import httpx2

        try:
            for chunk in response.iter_raw():
                yield chunk
        except httpx2.TransportError as e:
            why = (
                "the daemon was silent for too long"
                if isinstance(e, httpx2.TimeoutException)
                else str(e) or type(e).__name__
            )
            raise StreamBrokenError(f"{what} broke off: {why}") from e
