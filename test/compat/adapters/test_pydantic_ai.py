"""The workspace for Pydantic AI: its own suite, an agent, and what forkd adds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from conftest import Daemon
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from forkd import AsyncSandbox, InvalidArgumentError
from forkd.integrations import pydantic_ai
from forkd.integrations.pydantic_ai import ForkdWorkspace

WHERE = "/tmp/workspace"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def made(daemon: Daemon) -> list[ForkdWorkspace]:
    return []


@pytest.fixture
def new(daemon: Daemon, made: list[ForkdWorkspace]) -> Callable[[], ForkdWorkspace]:
    def new() -> ForkdWorkspace:
        made.append(ForkdWorkspace(daemon.snapshot, env=daemon.env, user=daemon.user, working_dir=WHERE))
        return made[-1]

    return new


@pytest.fixture
async def backend(daemon: Daemon, made: list[ForkdWorkspace], new: Callable[[], ForkdWorkspace]) -> ForkdWorkspace:
    """One sandbox for all tests. Each test attaches to this sandbox from an event loop of its own."""
    if not made or made[0].ref is None:
        made.insert(
            0,
            ForkdWorkspace(daemon.snapshot, env=daemon.env, user=daemon.user, working_dir=WHERE),
        )
        await made[0].working_dir()
    return attach(daemon, made[0].ref)


def attach(daemon: Daemon, ref: WorkspaceRef | None) -> ForkdWorkspace:
    assert ref is not None
    return ForkdWorkspace(ref=ref, user=daemon.user, working_dir=WHERE)


@pytest.fixture(scope="module", autouse=True)
def cleanup(made: list[ForkdWorkspace]) -> object:
    async def kill() -> None:
        for workspace in made:
            await workspace.kill()

    yield
    anyio.run(kill)


class TestSuite(WorkspaceBackendSuite):
    @pytest.fixture
    def backend(self, backend: ForkdWorkspace) -> ForkdWorkspace:
        return backend

    @pytest.fixture
    def fresh_backend(self, new: Callable[[], ForkdWorkspace]) -> Callable[[], WorkspaceBackend]:
        return new

    @pytest.fixture
    def attach_backend(self, daemon: Daemon) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: attach(daemon, ref)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            await (await AsyncSandbox.connect(backend.ref.id)).kill()

        return destroy


@pytest.mark.anyio
async def test_output_above_the_limit_ends_the_command(
    backend: ForkdWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pydantic_ai, "MAX_OUTPUT", 1000)
    with anyio.fail_after(120), pytest.raises(WorkspaceOutputLimitError) as caught:
        await backend.run("while :; do echo 0123456789; done", shell=True)
    assert len(caught.value.stdout) == caught.value.limit == 1000


@pytest.mark.anyio
async def test_arguments(daemon: Daemon, backend: ForkdWorkspace) -> None:
    for wrong in (
        {},
        {"snapshot": "a", "ref": backend.ref},
        {"ref": WorkspaceRef(provider="other", id="x")},
    ):
        with pytest.raises(InvalidArgumentError):
            ForkdWorkspace(**wrong)
    with pytest.raises(ValueError):
        await backend.run(["true"], timeout=-1)
    with pytest.raises(WorkspaceUnavailableError):
        await attach(daemon, WorkspaceRef(provider="forkd", id="sb-none")).working_dir()


@pytest.mark.anyio
async def test_branch_rollback_fork(new: Callable[[], ForkdWorkspace], real: None) -> None:
    workspace = new()
    await workspace.run("echo one >state", shell=True)
    before = await workspace.branch()
    await workspace.run("echo two >state", shell=True)
    [child] = await workspace.fork()
    await workspace.rollback(before)
    assert (await workspace.run(["cat", "state"])).stdout == "one\n"
    assert (await child.run(["cat", "state"])).stdout == "two\n"
    await child.kill()
    await workspace.kill()
    await before.delete()


@pytest.mark.anyio
async def test_an_agent(new: Callable[[], ForkdWorkspace]) -> None:
    """A scripted model uses a tool that runs commands in the workspace of the run."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if last.part_kind == "user-prompt":
            return ModelResponse(parts=[ToolCallPart("shell", {"command": "echo $((6 * 7))"})])
        return ModelResponse(parts=[TextPart(f"it is {last.content}")])

    agent = Agent(FunctionModel(answer))

    @agent.tool
    async def shell(ctx: RunContext[None], command: str) -> str:
        return (await ctx.workspace.run(command, shell=True)).stdout.strip()

    workspace = new()
    assert (await agent.run("6 * 7?", workspace=workspace)).output == "it is 42"
    await workspace.kill()
