"""Commands and terminals."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from forkd import AsyncClient, BytesResult, Client, CommandFailed, CommandResult, ForkdError, Output, Sandbox
from forkd.errors import InputClosedError, NotFoundInSandboxError


def test_a_string_is_for_the_shell_and_a_list_is_exact(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo $((1 + 2)); echo err >&2; exit 3") == CommandResult("3\n", "err\n", 3)
    assert sandbox.commands.run(["echo", "a b", "$HOME", ""]).stdout == "a b $HOME \n"


def test_environment_directory_and_user(sandbox: Sandbox) -> None:
    got = sandbox.commands.run("echo $A; pwd; id -un", env={"A": "é\u2028x"}, cwd="/usr", user="root")
    assert got.stdout == "é\u2028x\n/usr\nroot\n"


def test_outcomes(sandbox: Sandbox) -> None:
    slow = sandbox.commands.run("echo begun; exec sleep 100", timeout=2)
    assert (slow.outcome, slow.exit_code, slow.timed_out, slow.ok, slow.stdout) == (
        "timeout",
        124,
        True,
        False,
        "begun\n",
    )
    killed = sandbox.commands.run("kill -9 $$")
    assert (killed.outcome, killed.signal, killed.exit_code) == ("signaled", "SIGKILL", 137)
    missing = sandbox.commands.run(["no-such-program"])
    assert (missing.outcome, missing.exit_code) == ("not_found", 127) and "no-such-program" in (missing.error or "")
    assert sandbox.commands.run(["true"]).ok


def test_check_makes_failure_an_exception(sandbox: Sandbox) -> None:
    with pytest.raises(CommandFailed, match="exit code 4") as caught:
        sandbox.commands.run("echo why >&2; exit 4", check=True)
    assert caught.value.result is not None and caught.value.result.exit_code == 4 and "why" in str(caught.value)
    assert sandbox.commands.run("exit 0", check=True).ok
    with pytest.raises(CommandFailed):
        sandbox.commands.start("exit 5", check=True).wait()


def test_stdin_in_the_foreground(sandbox: Sandbox) -> None:
    assert sandbox.commands.run(["cat"], stdin="text\n").stdout == "text\n"
    assert sandbox.commands.run(["cat"]).stdout == "", "without stdin it reads an end at once"
    data = bytes(range(256)) * 4096
    assert sandbox.commands.run(["cat"], stdin=data, text=False).stdout == data


def test_callbacks_are_given_output_as_it_comes(sandbox: Sandbox) -> None:
    parts: list[tuple[str, str]] = []
    got = sandbox.commands.run(
        "echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c",
        on_stdout=lambda s: parts.append(("out", s)),
        on_stderr=lambda s: parts.append(("err", s)),
    )
    assert parts == [("out", "a\n"), ("err", "b\n"), ("out", "c\n")] and got.stdout == "a\nc\n"


def test_an_error_of_a_callback_ends_the_command(sandbox: Sandbox) -> None:
    def fail(part: str) -> None:
        raise KeyError(part)

    with pytest.raises(KeyError):
        sandbox.commands.run("echo a; exec sleep 1000", on_stdout=fail, timeout=900)
    for _ in range(100):
        if not (left := sandbox.commands.list()):
            break
        threading.Event().wait(0.05)
    assert not left


def test_start_and_iterate(sandbox: Sandbox) -> None:
    handle = sandbox.commands.start("echo a; sleep 0.2; echo b >&2; exit 2")
    assert handle.pid > 0 and [p.pid for p in sandbox.commands.list()] == [handle.pid]
    assert list(handle) == [Output("stdout", "a\n"), Output("stderr", "b\n")]
    assert handle.wait() == CommandResult("a\n", "b\n", 2)


def test_write_and_close_stdin(sandbox: Sandbox) -> None:
    handle = sandbox.commands.start(["cat"], stdin=True)
    handle.write("one\n")
    assert next(iter(handle)) == Output("stdout", "one\n")
    handle.write(b"two\n")
    handle.close_stdin()
    assert handle.wait().stdout == "one\ntwo\n"
    with pytest.raises(InputClosedError):
        handle.write("three")


def test_large_input_does_not_deadlock(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 20_000
    got = sandbox.commands.start(["cat"], stdin=data, text=False).wait()
    assert isinstance(got, BytesResult) and got.stdout == data
    assert sandbox.commands.start(["head", "-c", "3"], stdin=data, text=False).wait().stdout == data[:3]


def test_input_that_is_not_taken_is_an_error(sandbox: Sandbox) -> None:
    handle = sandbox.commands.start("exec 0<&-; sleep 5", stdin=True)
    with pytest.raises(InputClosedError) as caught:
        handle.write(b"x" * (4 << 20))
    assert isinstance(caught.value, BrokenPipeError)
    handle.kill()
    assert handle.wait().signal == "SIGKILL"


def test_input_for_a_command_that_has_ended_already(sandbox: Sandbox) -> None:
    """The end of the command, and of the stream, may arrive together with its start."""
    for _ in range(100):
        assert sandbox.commands.start(["echo", "done"], stdin=b"").wait().stdout == "done\n"


def test_a_start_that_is_cancelled_kills_its_command(rig: Any, sandbox: Sandbox) -> None:
    async def cancelled() -> None:
        async with AsyncClient(rig.url, token=rig.token) as client:
            there = await client.connect(sandbox.id)
            start = asyncio.create_task(there.commands.start(["sleep", "600"], stdin=b"x" * (1 << 20)))
            async with asyncio.timeout(30):
                while not (found := await there.commands.list()):
                    await asyncio.sleep(0.02)
                start.cancel()
                with pytest.raises(asyncio.CancelledError) as caught:
                    await start
                while await there.commands.list():
                    await asyncio.sleep(0.02)
            assert len(found) == 1 and caught.value.__traceback__ is not None  # the traceback keeps the stream alive

    asyncio.run(cancelled())


def test_signal_kill_and_send_stdin_by_number(sandbox: Sandbox) -> None:
    handle = sandbox.commands.start(
        "trap 'echo caught; exit 9' TERM; echo ready; read x; echo got $x; while :; do sleep 0.05; done", stdin=True
    )
    parts = iter(handle)
    assert next(parts).data == "ready\n"
    sandbox.commands.send_stdin(handle.pid, "it\n", close=True)
    assert next(parts).data == "got it\n"
    sandbox.commands.signal(handle.pid, "TERM")
    got = handle.wait()
    assert got.exit_code == 9 and got.stdout.endswith("caught\n")
    assert sandbox.commands.kill(handle.pid) is False
    with pytest.raises(NotFoundInSandboxError):
        sandbox.commands.signal(handle.pid, "TERM")


def test_handle_signals_while_another_thread_waits(sandbox: Sandbox) -> None:
    handle, results = sandbox.commands.start(["sleep", "1000"]), []
    waiter = threading.Thread(target=lambda: results.append(handle.wait()))
    waiter.start()
    handle.signal("INT")
    waiter.join(20)
    assert results[0].signal == "SIGINT"


def test_detach_and_connect(sandbox: Sandbox) -> None:
    handle = sandbox.commands.start("while read x; do echo got $x; done", stdin=True)
    handle.detach()
    with pytest.raises(ForkdError, match="detached"):
        handle.wait()
    assert [p.pid for p in sandbox.commands.list()] == [handle.pid]
    with sandbox.commands.connect(handle.pid) as again:
        sandbox.commands.send_stdin(handle.pid, "me\n")
        assert next(iter(again)) == Output("stdout", "got me\n")
    assert sandbox.commands.list(), "closing a handle of connect ends nothing"
    assert sandbox.commands.kill(handle.pid) is True


def test_closing_a_handle_kills_its_command(sandbox: Sandbox) -> None:
    with sandbox.commands.start(["sleep", "1000"]):
        pass
    for _ in range(100):
        if not (left := sandbox.commands.list()):
            break
        threading.Event().wait(0.05)
    assert not left


def test_terminal(sandbox: Sandbox) -> None:
    with sandbox.pty.create(100, 30, cmd=["sh", "-c", "stty size; read x; stty size; echo got $x"]) as terminal:
        assert next(iter(terminal)).data == b"30 100\r\n"
        terminal.resize(120, 40)
        terminal.write("hello\n")
        got = terminal.wait()
    assert got.stdout.endswith(b"40 120\r\ngot hello\r\n") and got.stderr == b""


def test_terminal_with_a_shell(sandbox: Sandbox) -> None:
    with sandbox.pty.create() as terminal:
        sandbox.pty.resize(terminal.pid, 90, 20)
        sandbox.pty.send_stdin(terminal.pid, "stty size; exit 3\n")
        got = terminal.wait()
    assert b"20 90" in got.stdout and got.exit_code == 3
    assert sandbox.pty.kill(terminal.pid) is False


def test_commands_of_a_sandbox_that_is_gone(client: Client, rig: Any) -> None:
    from forkd.errors import SandboxNotFoundError

    sandbox = Sandbox.create(rig.snapshot, client=client)
    assert sandbox.kill() is True and sandbox.kill() is False
    for call in (
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.commands.start("true"),
        lambda: sandbox.info(),
        lambda: sandbox.files.read("/x"),
    ):
        with pytest.raises(SandboxNotFoundError):
            call()
