"""Google's ADK: E2BEnvironment, and the six tools of e2b-adk's plugin, which an agent calls. The model is scripted."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from conftest import served
from e2b_adk import E2BPlugin
from google.adk.agents import Agent
from google.adk.integrations.e2b import E2BEnvironment
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

PORT = 18433


class Scripted(BaseLlm):
    """Calls tools one after another, and keeps their answers."""

    calls: list[tuple[str, dict]]
    answers: list[dict] = []

    async def generate_content_async(self, llm_request, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            self.answers.append(last.function_response.response)
        part = types.Part(text="done")
        if self.calls:
            name, args = self.calls.pop(0)
            part = types.Part(function_call=types.FunctionCall(name=name, args=args))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


@pytest.fixture(scope="module")
async def environment() -> AsyncIterator[E2BEnvironment]:
    made = E2BEnvironment(timeout=1800, env_vars={"GIVEN": "word"})
    await made.initialize()
    yield made
    await made.close()


async def test_a_command(environment: E2BEnvironment) -> None:
    got = await environment.execute("echo $GIVEN; pwd; echo err >&2")
    assert (got.exit_code, got.stdout, got.stderr) == (0, f"word\n{environment.working_dir}\n", "err\n")


async def test_a_command_that_fails(environment: E2BEnvironment) -> None:
    assert (await environment.execute("exit 9")).exit_code == 9


async def test_a_command_that_takes_too_long(environment: E2BEnvironment) -> None:
    assert (await environment.execute("sleep 600", timeout=3)).timed_out


async def test_files(environment: E2BEnvironment) -> None:
    await environment.write_file("adk/bytes", bytes(range(256)))
    assert await environment.read_file("adk/bytes") == bytes(range(256))
    assert (await environment.execute("stat -c %s adk/bytes")).stdout == "256\n"


async def test_text(environment: E2BEnvironment) -> None:
    await environment.write_file("/tmp/adk-text", "héllo")
    assert (await environment.read_file("/tmp/adk-text")).decode() == "héllo"


async def test_a_missing_file(environment: E2BEnvironment) -> None:
    with pytest.raises(FileNotFoundError):
        await environment.read_file("adk/missing")


async def test_python_is_there(environment: E2BEnvironment) -> None:
    assert (await environment.execute("python3 -c 'print(6 * 7)'")).stdout == "42\n"


async def test_a_sandbox_that_has_ended_is_replaced() -> None:
    made = E2BEnvironment(timeout=600)
    await made.initialize()
    await made._sandbox.kill()
    assert (await made.execute("echo again")).stdout == "again\n"
    await made.close()


@pytest.fixture(scope="module")
async def answers() -> AsyncIterator[list[dict]]:
    calls = [
        ("run_code", {"code": "x = 40\nprint('printed')\nx + 2"}),
        ("run_code", {"code": "1 / 0"}),
        ("run_command", {"command": "echo $A; exit 4", "envs": {"A": "b"}}),
        ("write_file", {"path": "/home/user/adk-www/a.txt", "content": "served"}),
        ("read_file", {"path": "/home/user/adk-www/a.txt"}),
        ("list_files", {"path": "/home/user/adk-www"}),
        (
            "start_background_command",
            {"command": f"exec python3 -m http.server {PORT}", "port": PORT, "cwd": "/home/user/adk-www", "timeout": 0},
        ),
    ]
    plugin = E2BPlugin(timeout=1800)
    model = Scripted(model="scripted", calls=calls)
    runner = InMemoryRunner(
        agent=Agent(name="a", model=model, tools=plugin.get_tools()), app_name="a", plugins=[plugin]
    )
    session = await runner.session_service.create_session(app_name="a", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="begin")])
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        last = event
    assert last.content.parts[0].text == "done" and len(model.answers) == 7
    yield model.answers
    await plugin.close()


async def test_run_code(answers: list[dict]) -> None:
    assert answers[0] == {"success": True, "stdout": "printed\n", "stderr": "", "text": "42", "error": ""}


async def test_run_code_with_an_error(answers: list[dict]) -> None:
    assert answers[1]["error"].startswith("ZeroDivisionError")


async def test_run_command(answers: list[dict]) -> None:
    assert (answers[2]["stdout"], answers[2]["exit_code"]) == ("b\n", 4)


async def test_write_file(answers: list[dict]) -> None:
    assert answers[3]["success"]


async def test_read_file(answers: list[dict]) -> None:
    assert "served" in json.dumps(answers[4])


async def test_list_files(answers: list[dict]) -> None:
    assert "a.txt" in json.dumps(answers[5])


async def test_start_background_command(answers: list[dict]) -> None:
    url = answers[6]["preview_url"] + "/a.txt"
    assert await served(url) == b"served"
