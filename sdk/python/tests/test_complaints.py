"""Complaints of E2B's users that do not apply to this SDK. The numbers are those of E2B's issues.

SANDBOXES is the number of sandboxes in the first test: 300 by default, 10000 for a long run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkd import AsyncClient, AsyncSandbox, Client, Sandbox, Sandboxes

MANY = int(os.environ.get("SANDBOXES", "300"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def opened() -> list[str]:
    """The targets of this process's descriptors."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # it was the descriptor of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def alone(test: Callable[[str], None], rig: Any) -> None:
    """Runs a test in a process of its own. In pytest's process, descriptors and threads that other tests
    have left may appear or disappear during the test."""
    process = multiprocessing.get_context("spawn").Process(target=test, args=(rig.snapshot,))
    process.start()
    process.join()
    assert process.exitcode == 0, "see the standard error of the process"


def test_1155_no_descriptor_left_after_many_sandboxes(rig: Any) -> None:
    """E2B #1155: a client for every sandbox, and no client is closed."""
    alone(many_sandboxes, rig)


def many_sandboxes(snapshot: str) -> None:
    Sandbox.create(snapshot).kill()  # the default client has its connection now
    before, threads = opened(), threading.enumerate()
    for i in range(MANY):
        sandbox = Sandbox.create(snapshot)
        if i % 50 == 0:
            sandbox.commands.run("true")  # the sandbox has an agent from now on
        assert sandbox.kill()
    for _ in range(20):
        with Client() as client:
            client.sandboxes()
    left = opened()
    assert len(left) <= len(before), f"{sorted(set(left) - set(before))} were opened"
    assert threading.enumerate() == threads


def test_1155_no_descriptor_left_of_streams_and_handles(rig: Any) -> None:
    alone(streams_and_handles, rig)


def streams_and_handles(snapshot: str) -> None:
    with Sandbox.create(snapshot) as sandbox:
        sandbox.commands.run("true")
        before = opened()
        for _ in range(30):
            sandbox.commands.start("true").wait()
            with sandbox.commands.start(["sleep", "100"]):
                pass
            sandbox.commands.run("echo x")
            next(iter(sandbox.logs(tail=1)))
        left = opened()
        assert len(left) <= len(before), f"{sorted(set(left) - set(before))} were opened, {sandbox.commands.list()} run"


# The garbage collector may find the socket before its handle. Python warns of such a socket.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_1155_a_handle_that_is_forgotten_leaves_nothing(rig: Any, sandbox: Sandbox) -> None:
    """If a handle is not closed, the garbage collector closes it, and the command ends."""
    sandbox.commands.run("true")
    before = descriptors()
    for _ in range(5):
        sandbox.commands.start(["sleep", "1000"])
    gc.collect()
    while sandbox.commands.list():
        time.sleep(0.05)
    assert descriptors() <= before + 1

    async def main() -> None:
        async with AsyncClient(rig.url, token=rig.token) as client:
            async with await AsyncSandbox.create(rig.snapshot, client=client) as other:
                await other.commands.run("true")
                before = descriptors()
                for _ in range(5):
                    await other.commands.start(["sleep", "1000"])
                gc.collect()
                while await other.commands.list():
                    await asyncio.sleep(0.05)
                assert descriptors() <= before + 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_1418_one_pool_under_200_parallel_streams(rig: Any) -> None:
    """E2B #1418: a pool that breaks at high concurrency."""

    async def main() -> None:
        async with AsyncClient(rig.url, token=rig.token) as client:
            async with await client.fork(rig.snapshot, 8) as sandboxes:
                gate = str(rig.tmp / "gate")
                await sandboxes[0].files.write(gate + ".wait", "")

                async def stream(i: int) -> str:
                    handle = await sandboxes[i % 8].commands.start(
                        f"echo {i}; while [ -e {gate}.wait ]; do sleep 0.3; done; echo done"
                    )
                    first = await anext(aiter(handle))
                    both.append(i)
                    return str(first.data) + (await handle.wait()).stdout

                both: list[int] = []
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(stream(i)) for i in range(200)]
                    while len(both) < 200:
                        await asyncio.sleep(0.1)
                    await sandboxes[0].files.remove(gate + ".wait")  # all streams were open at the same time
                assert [t.result() for t in tasks] == [f"{i}\n{i}\ndone\n" for i in range(200)]

    asyncio.run(main())


def test_1418_200_threads_of_one_client(sandbox: Sandbox) -> None:
    results: dict[int, str] = {}

    def run(i: int) -> None:
        results[i] = sandbox.commands.run(["sh", "-c", f"sleep 0.2; echo {i}"]).stdout

    threads = [threading.Thread(target=run, args=(i,)) for i in range(100)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert results == {i: f"{i}\n" for i in range(100)}


def test_one_client_in_several_event_loops_and_threads(rig: Any) -> None:
    """nexi-lab/nexus#602: a client that is bound to the loop in which it was used first."""
    client = AsyncClient(rig.url, token=rig.token)

    async def use() -> str:
        async with await AsyncSandbox.create(rig.snapshot, client=client) as sandbox:
            return (await sandbox.commands.run("echo hi")).stdout

    assert asyncio.run(use()) == "hi\n"
    before = descriptors()
    for _ in range(20):
        assert asyncio.run(use()) == "hi\n"
    assert descriptors() <= before, "a loop that ends closes its connections"
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(use()))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert results == ["hi\n"] * 8 and descriptors() <= before
    assert not client._transport.pools.pools


def test_a_process_that_was_forked_has_connections_of_its_own(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo parent").stdout == "parent\n"
    if (child := os.fork()) == 0:
        ok = all(sandbox.commands.run("echo child").stdout == "child\n" for _ in range(10))
        os._exit(0 if ok else 1)
    assert all(sandbox.commands.run("echo parent").stdout == "parent\n" for _ in range(10))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_1128_no_stream_hangs_for_ever(rig: Any) -> None:
    """E2B #1128: streams without a read timeout.

    The daemon regularly sends a message on every stream. So a stream may be silent for long, but ends if
    its daemon has disappeared."""
    with Client(rig.url, token=rig.token) as client:
        assert client._transport.idle == 100
        client._transport.idle = 6
        with Sandbox.create(rig.snapshot, client=client) as sandbox:
            quiet = {
                "run": lambda: sandbox.commands.run("sleep 9; echo end").stdout,
                "start": lambda: sandbox.commands.start("sleep 9; echo end").wait().stdout,
                "code": lambda: sandbox.run_code("import time; time.sleep(9); print('end')").stdout,
            }
            results: dict[str, str] = {}
            threads = [threading.Thread(target=lambda n=n, q=q: results.update({n: q()})) for n, q in quiet.items()]
            for t in threads:
                t.start()
            with sandbox.files.watch(rig.tmp) as changes:
                time.sleep(9)
                (Path(rig.tmp) / "after").touch()
                assert next(changes).name == "after"
            for t in threads:
                t.join(60)
            assert results == {"run": "end\n", "start": "end\n", "code": "end\n"}


def test_output_is_never_lossy(sandbox: Sandbox) -> None:
    """verifiers replaces the decoders of E2B's SDK, because output was decoded with replacement characters."""
    everything = bytes(range(256)) * 300 + "é\u2028\x85😀".encode()
    parts: list[str] = []
    got = sandbox.commands.run(["cat"], stdin=everything, on_stdout=parts.append)
    assert got.stdout_bytes == everything == "".join(parts).encode("utf-8", "surrogateescape")
    assert sandbox.commands.run(["cat"], stdin=everything, text=False).stdout == everything
    cut = sandbox.commands.run(
        "printf '\\303'; sleep 0.2; printf '\\251\\360\\237'; sleep 0.2; printf '\\230\\200'", on_stdout=parts.append
    )
    assert cut.stdout == "é😀" and parts[-2:] == ["é", "😀"], "a character that came in parts is whole"
    large = sandbox.commands.run("head -c 20000000 /dev/zero", text=False, timeout=120)
    assert len(large.stdout) == 20_000_000 and not large.truncated


def test_no_login_shell_says_anything_of_its_own(sandbox: Sandbox) -> None:
    """verifiers: bash -l -c is hard-coded."""
    assert sandbox.commands.run("echo $0; echo ${BASH_VERSION:-none}").stdout.splitlines()[0] == "/bin/sh"


def test_one_dependency() -> None:
    """suna#100 of Daytona's SDK: 24 dependencies that clash."""
    from importlib.metadata import requires

    assert [r.split(">")[0] for r in requires("forkd") or [] if "extra ==" not in r] == ["httpx2[ws]"]


def test_fork_says_what_it_made_or_raises(sandbox: Sandbox) -> None:
    """daytona PR 3954: the result of a fork is unclear."""
    with sandbox.fork(3) as children:
        assert isinstance(children, Sandboxes) and len(children) == 3
        assert {c.info().state for c in children} == {"running"}


@pytest.mark.parametrize("leave", ["cancel", "timeout"])
def test_a_call_that_is_left_leaves_nothing(rig: Any, leave: str) -> None:
    async def main() -> None:
        async with (
            AsyncClient(rig.url, token=rig.token) as client,
            await AsyncSandbox.create(rig.snapshot, client=client) as sandbox,
        ):
            call = asyncio.create_task(sandbox.commands.run("exec sleep 1000", timeout=900))
            while not await sandbox.commands.list():
                await asyncio.sleep(0.05)
            if leave == "cancel":
                call.cancel()
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(call, 0.1)
            with pytest.raises(asyncio.CancelledError):
                await call
            while await sandbox.commands.list():
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(main(), 60))
