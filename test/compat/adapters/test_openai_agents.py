"""The sandbox client for the OpenAI Agents SDK. The framework has no suite for sandbox clients, so these are ours. Its
own runner uses a session, with the framework's scripted model."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from agents import Runner
from agents.run_config import RunConfig
from agents.sandbox import ExecTimeoutError, LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File, InContainerMountStrategy, RcloneMountPattern, S3Mount
from agents.sandbox.errors import (
    ExecTransportError,
    InvalidManifestPathError,
    MountConfigError,
    PtySessionNotFoundError,
    SandboxError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.testing import ScriptedModel, assistant_message, function_call
from conftest import Daemon

from forkd import AsyncSandbox
from forkd.errors import SandboxNotFoundError
from forkd.integrations import openai_agents
from forkd.integrations.openai_agents import (
    ForkdSandboxClient,
    ForkdSandboxClientOptions,
    ForkdSandboxSessionState,
    ForkdSnapshot,
    ForkdSnapshotSpec,
)

LONG = 300  # seconds that an operation may take on an emulated host


def manifest() -> Manifest:
    """Each session has a workspace of its own, because fake VMs can share files."""
    return Manifest(
        root=f"/srv/{uuid4().hex}",
        environment={"value": {"GIVEN": "word"}},
        entries={"README.md": File(content=b"made by the manifest\n")},
    )


@pytest.fixture
def client() -> ForkdSandboxClient:
    return ForkdSandboxClient()


@pytest.fixture
def options(daemon: Daemon) -> ForkdSandboxClientOptions:
    return ForkdSandboxClientOptions(tag=daemon.snapshot, env={**daemon.env, "OPTION": "set"}, exposed_ports=(8000,))


@pytest.fixture(scope="module")
async def session(daemon: Daemon) -> AsyncIterator[SandboxSession]:
    options = ForkdSandboxClientOptions(tag=daemon.snapshot, env=daemon.env | {"OPTION": "set"}, exposed_ports=(8000,))
    async with await ForkdSandboxClient().create(manifest=manifest(), options=options) as made:
        yield made


async def text(session: SandboxSession, command: str) -> str:
    got = await session.exec(command, timeout=LONG)
    assert got.ok(), got
    return got.stdout.decode()


async def content(session: SandboxSession, path: str) -> bytes:
    return (await session.read(Path(path))).read()


async def put(session: SandboxSession, path: str, data: bytes) -> None:
    await session.write(Path(path), io.BytesIO(data))


# The interface of the framework.


async def test_a_command(session: SandboxSession) -> None:
    assert await text(session, "echo $GIVEN $OPTION; pwd") == f"word set\n{session.state.manifest.root}\n"


async def test_a_command_that_fails(session: SandboxSession) -> None:
    got = await session.exec("echo out; echo err >&2; printf '\\377'; exit 7")
    assert (got.stdout, got.stderr, got.exit_code) == (b"out\n\xff", b"err\n", 7)


async def test_an_argv_is_not_interpreted(session: SandboxSession) -> None:
    got = await session.exec("printf", "%s|", "$HOME", "a b", shell=False)
    assert got.stdout == b"$HOME|a b|"


async def test_a_missing_command(session: SandboxSession) -> None:
    got = await session.exec("/no/such/command", shell=False)
    assert got.exit_code == 127 and b"/no/such/command" in got.stderr


async def test_a_command_that_takes_too_long(session: SandboxSession) -> None:
    with pytest.raises(ExecTimeoutError) as caught:
        await session.exec("echo before; sleep 600", timeout=3)
    assert caught.value.context["stdout"] == "before\n"


async def test_output_has_a_limit(session: SandboxSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_agents, "MAX_OUTPUT", 1000)
    assert len((await session.exec("yes | head -c 100000", timeout=LONG)).stdout) == 1000


async def test_the_manifest_is_applied(session: SandboxSession) -> None:
    assert await content(session, "README.md") == b"made by the manifest\n"


async def test_files(session: SandboxSession) -> None:
    data = bytes(range(256)) * 400
    await put(session, "sub/data.bin", data)
    assert await content(session, "sub/data.bin") == data
    assert await session.read_bounded(Path("sub/data.bin"), max_bytes=1000) == data[:1000]
    assert "data.bin" in [Path(str(e.path)).name for e in await session.ls(Path("sub"))]
    await session.rm(Path("sub/data.bin"))
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("sub/data.bin"))
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read_bounded(Path("sub/data.bin"), max_bytes=1)


async def test_directories(session: SandboxSession) -> None:
    await session.mkdir(Path("a/b"), parents=True)
    await put(session, "a/b/c", b"c")
    await session.mv(Path("a/b/c"), Path("a/d"))
    assert await text(session, "find a | sort") == "a\na/b\na/d\n"


async def test_paths_stay_in_the_workspace(session: SandboxSession) -> None:
    await text(session, "ln -sfn /etc outside")
    for path in ("outside/passwd", "../x", "/etc/passwd"):
        with pytest.raises(InvalidManifestPathError):
            await session.read(Path(path))
        with pytest.raises(InvalidManifestPathError):
            await put(session, path, b"no")


async def test_a_terminal(session: SandboxSession) -> None:
    started = await session.pty_exec_start("test -t 0 && cat", tty=True, yield_time_s=2)
    assert started.process_id is not None
    output = started.output
    for n in range(10):
        got = await session.pty_write_stdin(
            session_id=started.process_id, chars="typed\n" if n == 0 else "", yield_time_s=1
        )
        output += got.output
        if output.count(b"typed") >= 2:  # the terminal's echo, and cat's
            break
    assert output.count(b"typed") >= 2
    await session.pty_terminate_all()
    with pytest.raises(PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=started.process_id, chars="")


async def test_a_process_without_a_terminal(session: SandboxSession) -> None:
    got = await session.pty_exec_start("for i in 1 2 3; do echo $i; done; exit 5", yield_time_s=LONG)
    assert (got.output.split(), got.exit_code, got.process_id) == ([b"1", b"2", b"3"], 5, None)


async def test_a_process_that_goes_on(session: SandboxSession) -> None:
    started = await session.pty_exec_start("echo begun; sleep 600", yield_time_s=1)
    assert started.process_id is not None and started.exit_code is None
    with pytest.raises(RuntimeError, match="stdin is not available"):
        await session.pty_write_stdin(session_id=started.process_id, chars="x")
    commands = ForkdSandboxClient().sandbox(session).commands

    async def there() -> bool:
        return any("echo begun" in " ".join(p.args) for p in await commands.list())

    assert await there()
    await session.pty_terminate_all()
    async with asyncio.timeout(LONG):
        while await there():  # the daemon kills the process when the connection is closed
            await asyncio.sleep(0.2)


async def test_an_exposed_port(session: SandboxSession, daemon: Daemon) -> None:
    if daemon.real:
        pytest.skip("this daemon has no domain")
    end = await session.resolve_exposed_port(8000)
    assert "sandboxes.test" in end.host and end.url_for("http").startswith("http")
    with pytest.raises(SandboxError):
        await session.resolve_exposed_port(8001)


async def test_the_agent_uses_its_tools(session: SandboxSession) -> None:
    call = function_call("exec_command", {"cmd": "echo sum $((40+2)) > answer; cat answer"}, call_id="1")
    model = ScriptedModel([[call], [assistant_message("done")]])
    result = await Runner.run(
        SandboxAgent(name="a", model=model),
        "add",
        run_config=RunConfig(sandbox=SandboxRunConfig(session=session), tracing_disabled=True),
    )
    assert result.final_output == "done" and "sum 42" in json.dumps(model.last_call.input, default=str)
    assert await content(session, "answer") == b"sum 42\n"


async def test_the_runner_makes_and_ends_a_session(
    client: ForkdSandboxClient, options: ForkdSandboxClientOptions
) -> None:
    """The runner owns the session, so it also kills the sandbox."""
    before = {s.id for s in await AsyncSandbox.list()}
    call = function_call("exec_command", {"cmd": "cat README.md"}, call_id="1")
    model = ScriptedModel([[call], [assistant_message("done")]])
    config = SandboxRunConfig(client=client, options=options, manifest=manifest())
    result = await Runner.run(
        SandboxAgent(name="a", model=model), "read", run_config=RunConfig(sandbox=config, tracing_disabled=True)
    )
    assert result.final_output == "done"
    assert "made by the manifest" in json.dumps(model.last_call.input, default=str)
    assert {s.id for s in await AsyncSandbox.list()} == before


async def test_the_end_of_a_sandbox_is_an_error(client: ForkdSandboxClient, options: ForkdSandboxClientOptions) -> None:
    async with await client.create(manifest=manifest(), options=options) as made:
        assert await made.running()
        await client.sandbox(made).kill()
        assert not await made.running()
        with pytest.raises(ExecTransportError, match="exec transport error"):
            await made.exec("true")


async def test_mounts_are_refused(client: ForkdSandboxClient, options: ForkdSandboxClientOptions) -> None:
    strategy = InContainerMountStrategy(pattern=RcloneMountPattern())
    mounts = Manifest(root="/srv/m", entries={"data": S3Mount(bucket="b", mount_strategy=strategy)})
    with pytest.raises(MountConfigError, match="no mounts"):
        await client.create(manifest=mounts, options=options)


async def test_options_are_stored_and_read(options: ForkdSandboxClientOptions) -> None:
    assert type(options).parse(json.loads(options.model_dump_json())) == options
    with pytest.raises(ValueError, match="newtork"):
        ForkdSandboxClientOptions(tag="base", newtork="none")


# A session that is saved, and resumed.


async def test_a_session_is_resumed_in_its_sandbox(session: SandboxSession, client: ForkdSandboxClient) -> None:
    await put(session, "kept", b"kept")
    again = await client.resume(stored(client, session))
    assert client.sandbox(again).id == client.sandbox(session).id
    await again.start()
    assert await content(again, "kept") == b"kept"


def stored(client: ForkdSandboxClient, session: SandboxSession) -> ForkdSandboxSessionState:
    """The state after it was written to a file and read again."""
    state = client.deserialize_session_state(json.loads(json.dumps(client.serialize_session_state(session.state))))
    assert isinstance(state, ForkdSandboxSessionState)
    return state


@pytest.mark.parametrize("kind", ["forkd", "local", "archive"])
async def test_a_session_is_resumed_from_what_it_saved(
    client: ForkdSandboxClient, options: ForkdSandboxClientOptions, tmp_path: Path, kind: str, kept: None
) -> None:
    spec = ForkdSnapshotSpec() if kind == "forkd" else LocalSnapshotSpec(base_path=tmp_path)
    if kind == "archive":
        options = options.model_copy(update={"workspace_persistence": "tar"})
    async with await client.create(manifest=manifest(), options=options, snapshot=spec) as made:
        await put(made, "state", b"saved")
        await text(made, f"echo outside >/srv/{made.state.session_id}")
    state, first = stored(client, made), client.sandbox(made)
    with pytest.raises(SandboxNotFoundError):
        await first.info()
    if kind == "local":
        assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 200, "a reference, not an archive"
    async with await client.resume(state) as again:
        assert client.sandbox(again).id != first.id
        assert await content(again, "state") == b"saved" and await content(again, "README.md")
        outside = await again.exec(f"cat /srv/{state.session_id}")
        assert outside.stdout == (b"" if kind == "archive" else b"outside\n")
        assert await text(again, "echo $GIVEN") == "word\n"


async def test_a_workspace_is_saved_and_restored(
    client: ForkdSandboxClient, options: ForkdSandboxClientOptions, kept: None
) -> None:
    async with await client.create(manifest=manifest(), options=options) as made:
        await put(made, "state", b"saved")
        saved, first = await made.persist_workspace(), client.sandbox(made)
        await put(made, "state", b"changed")
        await made.hydrate_workspace(saved)
        assert await content(made, "state") == b"saved" and client.sandbox(made).id != first.id
        with pytest.raises(SandboxNotFoundError):
            await first.info()


async def test_ephemeral_entries_are_not_saved(
    client: ForkdSandboxClient, options: ForkdSandboxClientOptions, tmp_path: Path
) -> None:
    given = manifest()
    given.entries["secret"] = File(content=b"secret", ephemeral=True)
    async with await client.create(
        manifest=given, options=options, snapshot=LocalSnapshotSpec(base_path=tmp_path)
    ) as made:
        await put(made, "state", b"saved")
    [archive] = tmp_path.iterdir()
    assert b"secret" not in archive.read_bytes()
    again = await client.create(manifest=given, options=options, snapshot=ForkdSnapshotSpec())
    await again.start()
    with pytest.raises(SandboxError, match="snapshot") as caught:
        await again.stop()
    assert 'workspace_persistence="branch"' in str(caught.value.context)
    await again.shutdown()


async def test_a_suspended_session_is_resumed(
    client: ForkdSandboxClient, options: ForkdSandboxClientOptions, kept: None
) -> None:
    options = options.model_copy(update={"on_exit": "suspend"})
    async with await client.create(manifest=manifest(), options=options) as made:
        await put(made, "state", b"saved")
    sandbox = client.sandbox(made)
    await client.delete(made)
    assert (await sandbox.info()).state == "suspended"
    again = await client.resume(stored(client, made))
    await again.start()
    assert client.sandbox(again).id == sandbox.id and await content(again, "state") == b"saved"
    await sandbox.kill()


async def test_hostile_archives_are_refused(session: SandboxSession) -> None:
    for data in (b"FORKD_BRANCH_V1\nnot json", b"FORKD_BRANCH_V1\n[]", b'FORKD_BRANCH_V1\n{"tag": ""}', b"no tar"):
        with pytest.raises((SandboxError, ValueError)):
            await session.hydrate_workspace(io.BytesIO(data))
    assert await session.running()


# What forkd adds.


async def test_branch_rollback_fork(client: ForkdSandboxClient, options: ForkdSandboxClientOptions, kept: None) -> None:
    async with await client.create(manifest=manifest(), options=options, snapshot=ForkdSnapshotSpec()) as made:
        await put(made, "state", b"one")
        before = await client.branch(made)
        await put(made, "state", b"two")
        left, right = await client.fork(made, 2)
        await client.rollback(made, before)
        assert await content(made, "state") == b"one"
        for child in (left, right):
            await child.start()
            assert await content(child, "state") == b"two" and child.state.session_id != made.state.session_id
        await put(left, "state", b"left")
        assert await content(right, "state") == b"two"
        await left.aclose()
        assert isinstance(left.state.snapshot, ForkdSnapshot) and isinstance(right.state.snapshot, ForkdSnapshot)
        assert left.state.snapshot.branch and right.state.snapshot.branch is None
        await right.shutdown()
    assert made.state.snapshot.branch != left.state.snapshot.branch


async def test_a_fork_shares_no_processes(client: ForkdSandboxClient, session: SandboxSession) -> None:
    started = await session.pty_exec_start("sleep 600", yield_time_s=0)
    [child] = await client.fork(session)
    with pytest.raises(PtySessionNotFoundError):
        await child.pty_write_stdin(session_id=started.process_id or 0, chars="")
    await session.pty_terminate_all()
    await child.shutdown()


async def test_sessions_of_other_clients_are_refused(client: ForkdSandboxClient) -> None:
    from agents.testing import scripted_sandbox_session

    for call in (client.branch, client.delete, client.fork):
        with pytest.raises((ValueError, AttributeError)):
            await call(scripted_sandbox_session([]))
    with pytest.raises(TypeError):
        await client.resume(scripted_sandbox_session([]).state)
