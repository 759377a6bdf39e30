"""smolagents: its agent writes code, and E2BExecutor runs it. The model is scripted."""

from __future__ import annotations

from collections.abc import Iterator

import PIL.Image
import pytest
from smolagents import AgentLogger, CodeAgent, tool
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError


class Scripted(Model):
    """Answers with a given list of programs, one after another."""

    def __init__(self, *programs: str) -> None:
        super().__init__(model_id="scripted")
        self.left, self.seen = list(programs), []

    def generate(self, messages, **_) -> ChatMessage:
        self.seen.append(str(messages))
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next\n<code>\n{self.left.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number
    """
    return 2 * number


@pytest.fixture(scope="module")
def executor() -> Iterator[E2BExecutor]:
    made = E2BExecutor([], AgentLogger(), timeout=1800)
    yield made
    made.cleanup()


def test_an_agent_runs_programs_with_a_tool_and_variables() -> None:
    model = Scripted("x = double(20)\nprint('printed', x)", "final_answer(x + 2)")
    with CodeAgent([double], model, executor_type="e2b", executor_kwargs={"timeout": 1800}) as agent:
        assert agent.run("add") == 42
    assert "printed 40" in model.seen[1]


def test_an_agent_sees_the_error_of_its_program() -> None:
    model = Scripted("1 / 0", "final_answer('mended')")
    with CodeAgent([], model, executor_type="e2b", executor_kwargs={"timeout": 1800}) as agent:
        assert agent.run("divide") == "mended"
    assert "ZeroDivisionError" in model.seen[1]


def test_a_result_and_output(executor: E2BExecutor) -> None:
    got = executor("print('printed')\n20 + 22")
    assert (got.output, got.logs.strip(), got.is_final_answer) == ("42", "printed", False)


def test_variables_are_sent(executor: E2BExecutor) -> None:
    executor.send_variables({"sent": {"a": [1, 2]}})
    assert executor("sent['a'][1]").output == "2"


def test_an_error_is_raised(executor: E2BExecutor) -> None:
    with pytest.raises(AgentError, match="NameError"):
        executor("no_such_name")


def test_an_image(executor: E2BExecutor) -> None:
    program = """
class Image:
    def _repr_png_(self):
        import base64
        data = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII='
        return base64.b64decode(data)
Image()
"""
    got = executor(program).output
    assert isinstance(got, PIL.Image.Image) and got.size == (1, 1)
