"""Runs commands and terminals in a sandbox."""

from __future__ import annotations

import base64
from builtins import list as List
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from .. import _args
from .._answers import problem_of
from .._errors import CommandFailed, ForkdError, InputClosedError, StreamBrokenError
from .._lines import Lines
from .._names import knows_e2b
from .._output import BytesResult, Collector, CommandResult, Output, Stream, event_of, output_of
from .._wire import Process
from . import _runtime
from ._socket import AsyncSocket, open_socket

if TYPE_CHECKING:
    from ._sandbox import AsyncSandbox

Command = str | Sequence[str]
"""A list is an exact argv, without a shell. A string is run by /bin/sh -c."""

Callback = Callable[[Any], Any]

MAX_STDIN = 8 << 20  # bytes that a request may carry
MAX_UNTAKEN = 128 << 10  # bytes of input that may be sent before the process has read them
SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash -il || exec sh -i"]


def exec_body(
    cmd: Command,
    env: Mapping[str, str] | None,
    cwd: Any,
    user: str | None,
    timeout: float | None,
    most: float = _args.DAYS30,
) -> dict[str, Any]:
    return _args.given(
        args=_args.command(cmd),
        env=_args.env(env),
        cwd=None if cwd is None else _args.path("cwd", cwd),
        user=_args.optional_text("user", user),
        timeout_secs=_args.seconds("timeout", timeout, most=most),
    )


def checked(result: Any, cmd: Command, check: bool) -> Any:
    if check and not result.ok:
        last = result.stderr_bytes[-500:].decode("utf-8", "replace").strip()
        raise CommandFailed(
            f"{cmd!r}: exit code {result.exit_code} ({result.error or result.outcome})" + (f"\n{last}" if last else ""),
            result=result,
        )
    return result


@knows_e2b
class AsyncCommandHandle:
    """A running command. Iterate over it to get its output as it arrives, or wait for its end. Closing the
    handle kills a command that start or pty.create has started, unless the command was detached."""

    def __init__(
        self, sandbox: AsyncSandbox, socket: AsyncSocket, pid: int, text: bool, check: bool, cmd: Command
    ) -> None:
        self.pid = pid
        """The process id in the sandbox."""
        self._sandbox, self._socket, self._cmd, self._check = sandbox, socket, cmd, check
        self._collector = Collector(text)
        self._ready: deque[Output] = deque()  # output that was received but not returned yet
        self._reading = _runtime.AsyncLock()
        self._sent = self._taken = 0
        self._stdin_closed = False
        self._end: dict[str, Any] | None = None
        self._detached = False
        self._error: Exception | None = None

    async def write(self, data: str | bytes) -> None:
        """Sends input, and returns when the process has taken all of it. Raises InputClosedError if the
        process takes no more input or has ended."""
        data = _args.data("data", data)
        for at in range(0, len(data), MAX_UNTAKEN):
            part = data[at : at + MAX_UNTAKEN]
            await self._send(part)
            self._sent += len(part)
            while self._taken < self._sent:
                if self._stdin_closed or self._ended():
                    raise InputClosedError(f"process {self.pid} takes no more input")
                await self._receive(lambda: self._taken < self._sent and not self._stdin_closed)

    send_stdin = write
    """E2B's name for write."""

    async def _send(self, message: bytes | dict[str, Any]) -> None:
        """Sends a message. If the process has ended, an error is ignored."""
        if self._ended():
            return
        try:
            await self._socket.send(message)
        except StreamBrokenError:
            while not self._ended():  # the end of the process may be in transit
                await self._receive(lambda: True)
            if self._error is not None:
                raise

    async def close_stdin(self) -> None:
        """Ends the input. A terminal receives Ctrl-D."""
        await self._send({"close_stdin": True})

    async def signal(self, name: str) -> None:
        """Sends a signal, such as "SIGINT" or "INT", to the process and its group."""
        await self._socket.send({"signal": _args.text("name", name)})

    async def kill(self) -> bool:
        """Kills the process and its group. Returns False if it had already ended."""
        return await self._sandbox.commands.kill(self.pid)

    async def resize(self, cols: int, rows: int) -> None:
        """Sets the size of the command's terminal."""
        await self._socket.send(
            {"resize": {"cols": _args.whole("cols", cols, 1, 65535), "rows": _args.whole("rows", rows, 1, 65535)}}
        )

    async def detach(self) -> None:
        """Lets the process continue without this handle. commands.connect follows it again."""
        await self._socket.send({"detach": True})
        while not self._ended():
            await self._receive(lambda: True)
        await self.aclose()

    disconnect = detach
    """E2B's name for detach."""

    async def wait(self, on_stdout: Callback | None = None, on_stderr: Callback | None = None) -> Any:
        """Waits for the end, and returns a CommandResult with all output (with text=False, a BytesResult).
        The callbacks receive output as it arrives, except output that was already iterated over."""
        collector = self._collector
        collector.on = {"stdout": on_stdout, "stderr": on_stderr}
        async for part in self:
            await _runtime.resolved(collector.call(part))
        if self._end is None:
            raise ForkdError(f"the handle of process {self.pid} was detached: the process goes on", code="detached")
        return checked(collector.result(self._end), self._cmd, self._check)

    async def __aiter__(self) -> AsyncIterator[Output]:
        while True:
            while self._ready:
                yield self._ready.popleft()
            if self._ended():
                break
            await self._receive(lambda: not self._ready)
        await self.aclose()
        if self._error is not None:
            raise self._error

    def _ended(self) -> bool:
        return self._end is not None or self._detached or self._error is not None

    async def _receive(self, wanted: Callable[[], bool]) -> None:
        """Receives one message of the daemon. If wanted returns False, another task or thread has
        received what the caller waits for, and nothing is received."""
        async with self._reading:
            if self._ended() or not wanted():
                return
            try:
                message = await self._socket.receive()
            except StreamBrokenError as e:
                e.pid = self.pid
                self._error = e
                return
            if isinstance(message, bytes):
                stream: Stream = "stderr" if message[:1] == b"\2" else "stdout"
                self._ready += self._collector.add(stream, message[1:])
            else:
                self._event(message)

    def _event(self, event: dict[str, Any]) -> None:
        self._taken = event.get("stdin_taken", self._taken)
        self._stdin_closed |= event.get("stdin_closed", False)
        if "end" in event:
            self._ready += self._collector.rest()
            self._end = event["end"]
        elif event.get("detached"):
            self._detached = True
        elif event.get("error"):
            self._error = problem_of(event["error"], event.get("code", ""), event.get("status", 0))

    async def aclose(self) -> None:
        """Closes the stream. A process that this handle has started is killed, unless it was detached."""
        await self._socket.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def open_handle(
    sandbox: AsyncSandbox, path: str, start: dict[str, Any] | None, text: bool, check: bool, cmd: Command
) -> AsyncCommandHandle:
    """Opens a WebSocket and waits until the process runs."""
    socket = await open_socket(sandbox.client._transport, path, f"the stream of {cmd!r}")
    try:
        if start is not None:
            await socket.send({"start": start})
        first: Any = {"keepalive": True}
        while first == {"keepalive": True}:
            first = await socket.receive()
        if not isinstance(first, dict) or "started" not in first and "end" not in first and "error" not in first:
            raise ForkdError(f"the stream of {cmd!r} does not begin with its start", code="bad_answer")
        if first.get("error"):
            raise problem_of(first["error"], first.get("code", ""), first.get("status", 0))
    except BaseException:
        await socket.aclose()
        raise
    handle = AsyncCommandHandle(sandbox, socket, first.get("started", {}).get("pid", 0), text, check, cmd)
    handle._event(first)  # the command may have ended already: the agent could not start it
    return handle


@knows_e2b
class AsyncCommands:
    """Runs commands in a sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    @overload
    async def run(
        self,
        cmd: Command,
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        text: Literal[True] = True,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: Command,
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        text: Literal[False],
        on_stdout: Callable[[bytes], Any] | None = None,
        on_stderr: Callable[[bytes], Any] | None = None,
    ) -> BytesResult: ...

    async def run(
        self,
        cmd: Command,
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        text: bool = True,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
    ) -> CommandResult | BytesResult:
        """Runs a command, and returns its result with all of its output. The callbacks receive output as it
        arrives. A list is an exact argv; a string is run by /bin/sh -c. timeout is in seconds, by default
        30 and at most 3600.

        A command that fails returns a result like any other, unless check is true; then CommandFailed is
        raised. With text=False, output is bytes. Cancelling this call kills the command."""
        body = exec_body(cmd, env, cwd, user, timeout, 3600)
        if stdin is not None:
            data = _args.data("stdin", stdin)
            if len(data) > MAX_STDIN:
                raise _args.wrong(
                    "stdin", f"{len(data)} bytes", "at most 8 MiB: use commands.start and write, or files.write"
                )
            body["stdin"] = base64.b64encode(data).decode()
        collector, end = Collector(text, on_stdout, on_stderr), None
        transport, lines, what = self._sandbox.client._transport, Lines(), f"the stream of {cmd!r}"
        async with transport.stream(
            "POST", self._sandbox._path("/exec"), json=body, headers={"Accept": "application/x-ndjson"}
        ) as response:
            async for chunk in transport.chunks(response, what):
                for line in lines.feed(chunk):
                    event = event_of(line)
                    if event.get("error"):
                        raise problem_of(event["error"], event.get("code", ""), event.get("status", 0))
                    end = event.get("end", end)
                    for stream, data in output_of(event):
                        for part in collector.add(stream, data):
                            await _runtime.resolved(collector.call(part))
        if end is None:
            raise StreamBrokenError(f"{what} broke off before the command's end: the daemon went away")
        for part in collector.rest():
            await _runtime.resolved(collector.call(part))
        return checked(collector.result(end), cmd, check)  # type: ignore[no-any-return]  # as text says

    async def start(
        self,
        cmd: Command,
        *,
        stdin: bool | str | bytes = False,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        text: bool = True,
    ) -> AsyncCommandHandle:
        """Starts a command, and returns a handle as soon as the command runs. With stdin=True, the command's
        input is open for write. If stdin is a str or bytes, the command receives exactly that. Without
        timeout the command may run without a limit. If the command cannot be started, the handle has already
        ended, and its outcome gives the reason."""
        body = exec_body(cmd, env, cwd, user, timeout)
        if stdin is not False:
            body["open_stdin"] = True
        handle = await open_handle(self._sandbox, self._sandbox._path("/exec"), body, text, check, cmd)
        if isinstance(stdin, (str, bytes)):
            try:
                await handle.write(stdin)
                await handle.close_stdin()
            except InputClosedError:
                pass  # the command, for example head, needs no more input
            except BaseException:
                await handle.aclose()
                raise
        return handle

    async def connect(self, pid: int, *, text: bool = True) -> AsyncCommandHandle:
        """Follows the output of a running command from now on. Closing the handle does not kill the command."""
        path = self._sandbox._path(f"/processes/{_args.whole('pid', pid, 1, 2**31)}/attach")
        return await open_handle(self._sandbox, path, None, text, False, f"process {pid}")

    async def list(self) -> List[Process]:
        """The running commands, oldest first."""
        answer = await self._sandbox._call("GET", "/processes")
        return [Process.from_json(p) for p in answer.json()]

    async def signal(self, pid: int, name: str) -> None:
        """Sends a signal, such as "SIGTERM" or "TERM", to a command and its group."""
        await self._sandbox._call(
            "POST", f"/processes/{_args.whole('pid', pid, 1, 2**31)}/signal", {"signal": _args.text("name", name)}
        )

    async def kill(self, pid: int) -> bool:
        """Kills a command and its group. Returns False if there is no such command."""
        from .._codes import NotFoundInSandboxError

        try:
            await self.signal(pid, "SIGKILL")
        except NotFoundInSandboxError:
            return False
        return True

    async def send_stdin(self, pid: int, data: str | bytes, *, close: bool = False) -> None:
        """Sends input to a command that was started with stdin=True. With close, the input then ends."""
        await self._sandbox._call(
            "POST",
            f"/processes/{_args.whole('pid', pid, 1, 2**31)}/stdin",
            content=_args.data("data", data),
            headers={"Content-Type": "application/octet-stream"},
            params=[("close", "true")] if close else [],
        )


@knows_e2b
class AsyncPty:
    """Terminals in a sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def create(
        self,
        cols: int = 80,
        rows: int = 24,
        *,
        cmd: Command = SHELL,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
    ) -> AsyncCommandHandle:
        """Starts a command with a terminal, by default a login shell. Its output is bytes, all of it
        stdout. write sends input to the terminal."""
        body = exec_body(cmd, env, cwd, user, timeout)
        body["tty"] = {"cols": _args.whole("cols", cols, 1, 65535), "rows": _args.whole("rows", rows, 1, 65535)}
        return await open_handle(self._sandbox, self._sandbox._path("/exec"), body, False, False, cmd)

    async def connect(self, pid: int) -> AsyncCommandHandle:
        """Follows the output of a detached terminal from now on."""
        return await self._sandbox.commands.connect(pid, text=False)

    async def resize(self, pid: int, cols: int, rows: int) -> None:
        """Sets the size of a terminal."""
        size = {"cols": _args.whole("cols", cols, 1, 65535), "rows": _args.whole("rows", rows, 1, 65535)}
        await self._sandbox._call("POST", f"/processes/{_args.whole('pid', pid, 1, 2**31)}/resize", size)

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Sends input to a terminal."""
        await self._sandbox.commands.send_stdin(pid, data)

    async def kill(self, pid: int) -> bool:
        """Kills the command of a terminal. Returns False if there is none."""
        return await self._sandbox.commands.kill(pid)
