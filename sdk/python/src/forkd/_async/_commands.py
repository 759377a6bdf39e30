"""Commands and terminals of a sandbox."""

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
"""A list is an exact argv, and no shell is involved. A string is run by /bin/sh -c."""

Callback = Callable[[Any], Any]

MAX_STDIN = 8 << 20  # bytes that a request may carry
MAX_UNTAKEN = 128 << 10  # bytes of input that are sent before the process has taken those before
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
    """A command that runs. Iterate over it for its output as it comes, or wait for its end. A command that
    start or pty.create began is killed when its handle is closed, unless it was detached."""

    def __init__(
        self, sandbox: AsyncSandbox, socket: AsyncSocket, pid: int, text: bool, check: bool, cmd: Command
    ) -> None:
        self.pid = pid
        """The number of the process in the sandbox."""
        self._sandbox, self._socket, self._cmd, self._check = sandbox, socket, cmd, check
        self._collector = Collector(text)
        self._ready: deque[Output] = deque()  # output that was received and not handed out
        self._reading = _runtime.AsyncLock()
        self._sent = self._taken = 0
        self._stdin_closed = False
        self._end: dict[str, Any] | None = None
        self._detached = False
        self._error: Exception | None = None

    async def write(self, data: str | bytes) -> None:
        """Sends input, and returns when the process has taken all of it. InputClosedError: it takes no more, or
        has ended."""
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
    """E2B's name of write."""

    async def _send(self, message: bytes | dict[str, Any]) -> None:
        """Sends what a process that has ended does not need."""
        if self._ended():
            return
        try:
            await self._socket.send(message)
        except StreamBrokenError:
            while not self._ended():  # its end may be on its way
                await self._receive(lambda: True)
            if self._error is not None:
                raise

    async def close_stdin(self) -> None:
        """Ends the input; a terminal is sent Ctrl-D."""
        await self._send({"close_stdin": True})

    async def signal(self, name: str) -> None:
        """Sends a signal, such as "SIGINT" or "INT", to the process and its group."""
        await self._socket.send({"signal": _args.text("name", name)})

    async def kill(self) -> bool:
        """Kills the process and its group. False: it had ended already."""
        return await self._sandbox.commands.kill(self.pid)

    async def resize(self, cols: int, rows: int) -> None:
        """Sets the size of its terminal."""
        await self._socket.send(
            {"resize": {"cols": _args.whole("cols", cols, 1, 65535), "rows": _args.whole("rows", rows, 1, 65535)}}
        )

    async def detach(self) -> None:
        """Leaves the process to itself; it goes on. commands.connect follows it again."""
        await self._socket.send({"detach": True})
        while not self._ended():
            await self._receive(lambda: True)
        await self.aclose()

    disconnect = detach
    """E2B's name of detach."""

    async def wait(self, on_stdout: Callback | None = None, on_stderr: Callback | None = None) -> Any:
        """Waits for the end, and returns a CommandResult with all output (with text=False, a BytesResult).
        The callbacks are given the output that was not iterated over yet, as it comes."""
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
        """Takes one message of the daemon, unless what is wanted came while another task or thread did so."""
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
        """Leaves the stream. A process that this handle started is killed, unless it was detached."""
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
    handle._event(first)  # it may have ended: it could not be started
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
        """Runs a command, and returns how it ended with all that it wrote. The callbacks are given its output
        as it comes.

        A list is an exact argv; a string is run by /bin/sh -c. timeout is in seconds: 30 if it is None, 3600
        at most. A command that fails is a result like others, unless check is true: then CommandFailed is
        raised. With text=False output is bytes. If this call is left, the command is killed."""
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
        """Starts a command, and returns a handle as soon as it runs. With stdin=True its input is open for
        write; with str or bytes it is that, and then its end. Without timeout it may run for as long as it
        likes. What could not be started has ended already, with an outcome that says why."""
        body = exec_body(cmd, env, cwd, user, timeout)
        if stdin is not False:
            body["open_stdin"] = True
        handle = await open_handle(self._sandbox, self._sandbox._path("/exec"), body, text, check, cmd)
        if isinstance(stdin, (str, bytes)):
            try:
                await handle.write(stdin)
                await handle.close_stdin()
            except InputClosedError:
                pass  # it needs no more of it, as `head` does
        return handle

    async def connect(self, pid: int, *, text: bool = True) -> AsyncCommandHandle:
        """Follows a command that runs: its output from now on. Closing the handle ends nothing."""
        path = self._sandbox._path(f"/processes/{_args.whole('pid', pid, 1, 2**31)}/attach")
        return await open_handle(self._sandbox, path, None, text, False, f"process {pid}")

    async def list(self) -> List[Process]:
        """The commands that run, oldest first."""
        answer = await self._sandbox._call("GET", "/processes")
        return [Process.from_json(p) for p in answer.json()]

    async def signal(self, pid: int, name: str) -> None:
        """Sends a signal, such as "SIGTERM" or "TERM", to a command and its group."""
        await self._sandbox._call(
            "POST", f"/processes/{_args.whole('pid', pid, 1, 2**31)}/signal", {"signal": _args.text("name", name)}
        )

    async def kill(self, pid: int) -> bool:
        """Kills a command and its group. False: there is no such command any more."""
        from .._codes import NotFoundInSandboxError

        try:
            await self.signal(pid, "SIGKILL")
        except NotFoundInSandboxError:
            return False
        return True

    async def send_stdin(self, pid: int, data: str | bytes, *, close: bool = False) -> None:
        """Sends input to a command that was started with stdin=True, and then its end with close."""
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
        """Starts a command with a terminal: a login shell if none is named. Its output is bytes, all of it
        stdout; write sends what is typed."""
        body = exec_body(cmd, env, cwd, user, timeout)
        body["tty"] = {"cols": _args.whole("cols", cols, 1, 65535), "rows": _args.whole("rows", rows, 1, 65535)}
        return await open_handle(self._sandbox, self._sandbox._path("/exec"), body, False, False, cmd)

    async def connect(self, pid: int) -> AsyncCommandHandle:
        """Follows a terminal that was left: its output from now on."""
        return await self._sandbox.commands.connect(pid, text=False)

    async def resize(self, pid: int, cols: int, rows: int) -> None:
        """Sets the size of a terminal."""
        size = {"cols": _args.whole("cols", cols, 1, 65535), "rows": _args.whole("rows", rows, 1, 65535)}
        await self._sandbox._call("POST", f"/processes/{_args.whole('pid', pid, 1, 2**31)}/resize", size)

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Types data."""
        await self._sandbox.commands.send_stdin(pid, data)

    async def kill(self, pid: int) -> bool:
        """Kills the command of a terminal. False: there is none any more."""
        return await self._sandbox.commands.kill(pid)
