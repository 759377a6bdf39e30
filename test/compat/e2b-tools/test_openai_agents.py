"""OpenAI's agents, in both ways in which they save a workspace: as a snapshot of E2B, and as an archive."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents import Runner
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.run_config import RunConfig
from agents.sandbox import ExecTimeoutError, Manifest, SandboxAgent, SandboxRunConfig, WorkspaceReadNotFoundError
from agents.testing import ScriptedModel, assistant_message, function_call
from conftest import FAKED, LONG, served

TIMEOUTS = {"keepalive_s": LONG, "cleanup_s": LONG, "fast_op_s": LONG, "file_upload_s": LONG, "snapshot_tar_s": LONG}
MODES = [("snapshot", "e2b", None), ("tar", "e2b_code_interpreter", "code-interpreter-v1")]
PORT = 18431


@pytest.fixture(scope="module", params=MODES, ids=[m[0] for m in MODES])
def options(request: pytest.FixtureRequest) -> E2BSandboxClientOptions:
    mode, kind, template = request.param
    return E2BSandboxClientOptions(
        kind, template=template, timeout=1800, timeouts=TIMEOUTS, workspace_persistence=mode, exposed_ports=(PORT,)
    )


@pytest.fixture(scope="module")
async def session(options: E2BSandboxClientOptions) -> AsyncIterator:
    manifest = Manifest(root="/home/user/workspace", environment={"value": {"GIVEN": "word"}})
    async with await E2BSandboxClient().create(manifest=manifest, options=options) as made:
        yield made


async def text(session, command: str) -> str:
    got = await session.exec(command, timeout=LONG)
    assert got.ok(), got
    return got.stdout.decode()


async def test_a_command(session) -> None:
    assert await text(session, "echo $GIVEN; pwd") == "word\n/home/user/workspace\n"


async def test_a_command_that_fails(session) -> None:
    got = await session.exec("echo out; echo err >&2; exit 7")
    assert (got.stdout, got.stderr, got.exit_code) == (b"out\n", b"err\n", 7)


async def test_a_command_that_takes_too_long(session) -> None:
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 600", timeout=3)


async def test_files(session) -> None:
    content = bytes(range(256)) * 400
    await session.write(Path("sub/data.bin"), io.BytesIO(content))
    assert (await session.read(Path("sub/data.bin"))).read() == content
    assert "data.bin" in [Path(str(e.path)).name for e in await session.ls(Path("sub"))]
    await session.rm(Path("sub/data.bin"))
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("sub/data.bin"))


async def test_directories(session) -> None:
    await session.mkdir(Path("a/b"), parents=True)
    await session.write(Path("a/b/c"), io.BytesIO(b"c"))
    await session.mv(Path("a/b/c"), Path("a/d"))
    assert await text(session, "find a | sort") == "a\na/b\na/d\n"


async def test_a_terminal(session) -> None:
    started = await session.pty_exec_start("cat", shell=False, tty=True, yield_time_s=3)
    assert started.process_id is not None
    output = b""
    for _ in range(10):
        got = await session.pty_write_stdin(
            session_id=started.process_id, chars="typed\n" if not output else "", yield_time_s=3
        )
        output += got.output
        if output.count(b"typed") >= 2:  # the terminal's echo, and cat's
            break
    assert output.count(b"typed") >= 2
    await session.pty_terminate_all()


async def test_a_process_without_a_terminal(session) -> None:
    got = await session.pty_exec_start("for i in 1 2 3; do echo $i; done", yield_time_s=LONG)
    assert got.output.split() == [b"1", b"2", b"3"] and got.exit_code == 0


async def test_a_server_at_an_exposed_port(session) -> None:
    await session.write(Path("served/a.txt"), io.BytesIO(b"served"))
    await session.pty_exec_start(f"cd served && exec python3 -m http.server {PORT}", yield_time_s=1)
    end = await session.resolve_exposed_port(PORT)
    url = f"https://{end.host}:{end.port}/a.txt"  # the tool takes a host with a port for one without TLS
    assert await served(url) == b"served"
    await session.pty_terminate_all()


async def test_the_agent_uses_its_tools(session) -> None:
    call = function_call("exec_command", {"cmd": "echo sum $((40+2)) > answer; cat answer"}, call_id="1")
    model = ScriptedModel([[call], [assistant_message("done")]])
    agent = SandboxAgent(name="a", model=model)
    result = await Runner.run(
        agent, "add", run_config=RunConfig(sandbox=SandboxRunConfig(session=session), tracing_disabled=True)
    )
    assert result.final_output == "done" and "sum 42" in json.dumps(model.last_call.input, default=str)
    assert (await session.read(Path("answer"))).read() == b"sum 42\n"


async def test_a_workspace_is_saved_and_restored(session) -> None:
    if FAKED and session.state.workspace_persistence == "snapshot":
        pytest.skip("fake VMs share their files")
    await session.write(Path("state"), io.BytesIO(b"saved"))
    saved = (await session.persist_workspace()).read()
    await session.write(Path("state"), io.BytesIO(b"changed"))
    await session.hydrate_workspace(io.BytesIO(saved))
    assert (await session.read(Path("state"))).read() == b"saved"


async def test_a_session_is_resumed_from_its_state(session) -> None:
    client = E2BSandboxClient()
    await session.write(Path("kept"), io.BytesIO(b"kept"))
    stored = json.loads(json.dumps(client.serialize_session_state(session.state)))
    again = await client.resume(client.deserialize_session_state(stored))
    assert again.state.sandbox_id == session.state.sandbox_id
    await again.start()
    assert (await again.read(Path("kept"))).read() == b"kept"


async def test_a_session_ends(options: E2BSandboxClientOptions) -> None:
    client = E2BSandboxClient()
    made = await client.create(manifest=Manifest(root="/home/user/workspace"), options=options)
    async with made:
        assert await made.running()
    assert not await made.running()
