"""Deep Agents Code, which finds E2BProvider of langchain-e2b by its entry point. The model is scripted."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

HOME = tempfile.TemporaryDirectory()  # removed when the process exits
os.environ["HOME"] = HOME.name  # the tool reads and writes ~/.deepagents, from its import on

import e2b
import pytest
from conftest import LONG
from deepagents.backends.protocol import SandboxBackendProtocol
from deepagents_code.agent import create_cli_agent
from deepagents_code.integrations.sandbox_factory import create_sandbox, get_default_working_dir, verify_sandbox_deps
from deepagents_code.integrations.sandbox_provider import SandboxNotFoundError, SandboxProvider
from deepagents_code.integrations.sandbox_registry import SandboxRegistry
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_e2b.provider import E2BProvider

MISSING = "sb-0123456789abcdef"


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: object, **_: object) -> Scripted:
        return self


@pytest.fixture
def provider() -> SandboxProvider:
    return SandboxRegistry.load().create_provider("e2b")


def text(backend: SandboxBackendProtocol, command: str) -> str:
    got = backend.execute(command, timeout=LONG)
    assert got.exit_code == 0, got
    return got.output.strip()


def seconds_left(sandbox_id: str) -> float:
    return e2b.Sandbox.get_info(sandbox_id).end_at.timestamp() - time.time()


def test_the_provider_is_found(provider: SandboxProvider) -> None:
    verify_sandbox_deps("e2b")
    assert isinstance(provider, E2BProvider)
    assert get_default_working_dir("e2b") == "/home/user"


def test_a_sandbox_lives_as_long_as_its_block() -> None:
    with create_sandbox("e2b") as backend:
        assert text(backend, "pwd") == "/home/user"
        assert 900 < seconds_left(backend.id) <= 1801  # the provider's default
    with pytest.raises(e2b.SandboxNotFoundException):
        e2b.Sandbox.get_info(backend.id)


def test_a_setup_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "a word")
    script = tmp_path / "setup.sh"
    script.write_text('echo "${GIVEN}" >setup-was-here\n')
    with create_sandbox("e2b", setup_script_path=str(script)) as backend:
        assert text(backend, "cat setup-was-here") == "a word"
    script.write_text("exit 3\n")
    with pytest.raises(RuntimeError, match="Setup failed"), create_sandbox("e2b", setup_script_path=str(script)):
        pass


def test_a_sandbox_that_exists_is_used_again(provider: SandboxProvider) -> None:
    made = provider.get_or_create(timeout=900)
    try:
        made.write("/home/user/kept.txt", "kept\n")
        with create_sandbox("e2b", sandbox_id=made.id) as backend:
            assert backend.id == made.id and text(backend, "cat kept.txt") == "kept"
        assert text(made, "echo on") == "on"  # the end of the block has not killed it
    finally:
        provider.delete(sandbox_id=made.id)
    with pytest.raises(SandboxNotFoundError):
        provider.get_or_create(sandbox_id=made.id)


def test_a_sandbox_that_does_not_exist(provider: SandboxProvider) -> None:
    with pytest.raises(SandboxNotFoundError):
        provider.get_or_create(sandbox_id=MISSING)
    provider.delete(sandbox_id=MISSING)


def test_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPAGENTS_CODE_E2B_SANDBOX_TIMEOUT", "700")
    params = {"template": "code-interpreter-v1", "workdir": "/tmp", "command_timeout": 3}
    with create_sandbox("e2b", params=params) as backend:
        assert text(backend, "pwd") == "/tmp"
        assert backend.execute("sleep 600").exit_code == 124
        assert 0 < seconds_left(backend.id) <= 701
        assert e2b.Sandbox.get_info(backend.id).name == "code-interpreter-v1"
    with pytest.raises(ValueError, match="snapshot_name is not supported"), create_sandbox("e2b", snapshot_name="base"):
        pass


async def test_async(provider: SandboxProvider) -> None:
    made = await provider.aget_or_create(timeout=900)
    try:
        assert (await made.aexecute("echo one")).output.strip() == "one"
        assert (await made.awrite("/home/user/async.txt", "two\n")).error is None
        again = await provider.aget_or_create(sandbox_id=made.id)
        assert (await again.aread("/home/user/async.txt")).file_data["content"].strip() == "two"
    finally:
        await provider.adelete(sandbox_id=made.id)
    with pytest.raises(SandboxNotFoundError):
        await provider.aget_or_create(sandbox_id=made.id)


async def test_the_agent_works_in_its_sandbox() -> None:
    def call(n: int, tool: str, **args: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": tool, "args": args, "id": str(n)}])

    model = Scripted(
        messages=iter(
            [
                call(1, "write_file", file_path="/home/user/sum.py", content="print(40 + 2)\n"),
                call(2, "execute", command="python3 sum.py >answer; cat answer"),
                AIMessage("done"),
            ]
        )
    )
    with create_sandbox("e2b") as backend:
        agent, _ = create_cli_agent(
            model,
            "tester",
            sandbox=backend,
            sandbox_type="e2b",
            interactive=False,
            auto_approve=True,
            enable_memory=False,
            enable_skills=False,
        )
        got = await agent.ainvoke({"messages": [HumanMessage("add")]})
        assert got["messages"][-1].text == "done"
        assert any(m.type == "tool" and m.text.startswith("42") for m in got["messages"])
        assert text(backend, "cat answer") == "42"
