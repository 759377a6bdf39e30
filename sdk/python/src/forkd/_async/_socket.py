"""WebSockets and raw connections, over an answer that switches protocols."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from .. import _answers
from .._errors import StreamBrokenError
from . import _runtime
from ._transport import AsyncTransport

if TYPE_CHECKING:
    import httpcore2
    import wsproto.connection


PART = 64  # bytes that a part takes besides its data


class AsyncSocket:
    """A WebSocket. Only one task or thread may receive at a time; any number may send."""

    stream: httpcore2.AsyncNetworkStream
    leave: AsyncExitStack
    what: str
    idle: float
    protocol: wsproto.connection.Connection
    sending: _runtime.AsyncLock
    open: bool

    def __init__(self, stream: httpcore2.AsyncNetworkStream, leave: AsyncExitStack, what: str, idle: float) -> None:
        import wsproto.connection

        self.stream, self.leave, self.what, self.idle = stream, leave, what, idle
        self.protocol = wsproto.connection.Connection(wsproto.connection.ConnectionType.CLIENT)
        self.sending = _runtime.AsyncLock()
        self.parts: list[Any] = []  # parts of an incomplete message
        self.size: int = 0  # bytes of parts, plus PART for each, because a part may be empty
        self.events: list[Any] = []  # messages that arrived together with others
        self.open = True

    async def send(self, message: bytes | dict[str, Any]) -> None:
        """Sends binary data, or a message as JSON."""
        import wsproto.events as ws

        event = ws.BytesMessage(message) if isinstance(message, bytes) else ws.TextMessage(json.dumps(message))
        await self.write(event)

    async def write(self, event: Any) -> None:
        import httpcore2
        import wsproto.utilities

        async with self.sending:
            if not self.open:
                raise StreamBrokenError(f"{self.what}: the stream has ended")
            try:
                await self.stream.write(self.protocol.send(event), timeout=self.idle)
            except wsproto.utilities.LocalProtocolError as e:  # the daemon's close has arrived already
                raise StreamBrokenError(f"{self.what}: the stream has ended") from e
            except (httpcore2.NetworkError, httpcore2.TimeoutException) as e:
                raise StreamBrokenError(f"{self.what} broke off: {str(e) or type(e).__name__}") from e

    async def receive(self) -> bytes | dict[str, Any]:
        """The next message. Raises StreamBrokenError if there is none."""
        import wsproto.events as ws

        while True:
            while self.events:
                event = self.events.pop(0)
                if isinstance(event, ws.Ping):
                    await self.write(event.response())
                elif isinstance(event, ws.CloseConnection):
                    why = (
                        "the daemon went away"
                        if event.code == 1006
                        else event.reason or f"it was closed with {event.code}"
                    )
                    raise StreamBrokenError(f"{self.what} broke off: {why}")
                elif isinstance(event, (ws.TextMessage, ws.BytesMessage)):
                    self.parts.append(event.data)
                    self.size += len(event.data) + PART
                    if self.size > _answers.MAX_ANSWER:
                        raise StreamBrokenError(
                            f"{self.what} broke off: a message has more than {_answers.MAX_ANSWER >> 20} MiB"
                        )
                    if event.message_finished:
                        parts, self.parts, self.size = self.parts, [], 0
                        if isinstance(event, ws.BytesMessage):
                            return b"".join(parts)
                        return _answers.parsed("".join(parts))  # type: ignore[no-any-return]  # the daemon sends objects
            await self.more()

    async def more(self) -> None:
        """Reads more bytes."""
        import httpcore2
        import wsproto.utilities

        try:
            data = await self.stream.read(1 << 16, timeout=self.idle)
            self.protocol.receive_data(data or None)
            self.events += self.protocol.events()
        except httpcore2.TimeoutException as e:
            raise StreamBrokenError(f"{self.what} broke off: the daemon was silent for {self.idle:g} s") from e
        except (httpcore2.NetworkError, wsproto.utilities.ProtocolError) as e:
            raise StreamBrokenError(f"{self.what} broke off: {str(e) or type(e).__name__}") from e

    async def aclose(self) -> None:
        """Closes the connection. It may be called again."""
        self.open = False
        await self.leave.aclose()


async def open_socket(transport: AsyncTransport, path: str, what: str) -> AsyncSocket:
    """Opens a WebSocket."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    leave = AsyncExitStack()
    try:
        response = await leave.enter_async_context(transport.stream("GET", path, headers=headers, switch=True))
        return AsyncSocket(response.extensions["network_stream"], leave, what, transport.idle)
    except BaseException:
        await leave.aclose()
        raise


class AsyncPortConnection:
    """A TCP connection to a port of a sandbox. Each direction ends separately."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def send(self, data: bytes) -> None:
        """Sends all of data."""
        import httpcore2

        try:
            await self._stream.write(data)
        except httpcore2.NetworkError as e:
            raise StreamBrokenError(f"the connection to the port broke off: {str(e) or type(e).__name__}") from e

    async def receive(self, most: int = 65536, timeout: float | None = None) -> bytes:
        """Received data, at most `most` bytes; empty if the server has ended its direction. Raises
        TimeoutError if nothing arrives within timeout seconds."""
        import httpcore2

        try:
            return await self._stream.read(most, timeout=timeout)
        except httpcore2.TimeoutException as e:
            raise TimeoutError(f"nothing came within {timeout:g} s") from e
        except httpcore2.NetworkError as e:
            raise StreamBrokenError(f"the connection to the port broke off: {str(e) or type(e).__name__}") from e

    async def end(self) -> None:
        """Ends the sending direction. The server may continue."""
        import socket

        self._stream.get_extra_info("socket").shutdown(socket.SHUT_WR)


@asynccontextmanager
async def open_port(transport: AsyncTransport, path: str) -> AsyncIterator[AsyncPortConnection]:
    """Opens a connection to a port."""
    async with transport.stream(
        "GET", path, headers={"Connection": "Upgrade", "Upgrade": "tcp"}, switch=True
    ) as response:
        yield AsyncPortConnection(response.extensions["network_stream"])
