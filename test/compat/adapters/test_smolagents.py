"""The executor for smolagents: its agent writes code, which runs in one interpreter of a sandbox. The model is
scripted. The package has no suite for executors, so these tests are ours."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import PIL.Image
import pytest
from conftest import Daemon
from smolagents import CodeAgent, tool
from smolagents.local_python_executor import CodeOutput
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.utils import AgentError

from forkd import InvalidArgumentError, Sandbox
from forkd.integrations import smolagents
from forkd.integrations.smolagents import ForkdExecutor

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
IMAGE = f"""
class Image:
    def _repr_png_(self):
        import base64
        return base64.b64decode({DOT!r})
Image()
"""


class Scripted(Model):
    """Answers with a given list of programs, one after another."""

    def __init__(self, *programs: str) -> None:
        super().__init__(model_id="scripted")
        self.left, self.seen = list(programs), []

    def generate(self, messages: object, **_: object) -> ChatMessage:
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
def executor(daemon: Daemon) -> Iterator[ForkdExecutor]:
    with ForkdExecutor(daemon.snapshot, env=daemon.env) as made:
        yield made


def test_an_agent_runs_programs_with_a_tool_and_variables(daemon: Daemon) -> None:
    model = Scripted("x = double(20)\nprint('printed', x)", "final_answer(x + 2)")
    executor = ForkdExecutor(daemon.snapshot, env=daemon.env)
    with CodeAgent([double], model, executor=executor) as agent:
        assert agent.run("add") == 42
    assert "printed 40" in model.seen[1]
    assert not executor.sandbox.is_running(), "the agent's cleanup kills the sandbox"


def test_an_agent_sees_the_error_of_its_program(executor: ForkdExecutor) -> None:
    model = Scripted("1 / 0", "final_answer('mended')")
    assert CodeAgent([], model, executor=executor).run("divide") == "mended"
    assert "ZeroDivisionError" in model.seen[1]


def test_a_final_answer_with_types(executor: ForkdExecutor) -> None:
    model = Scripted("final_answer({'a': (1, 2), 'b': {3}, 'c': b'x'})")
    assert CodeAgent([], model, executor=executor).run("?") == {"a": (1, 2), "b": {3}, "c": b"x"}


def test_a_result_and_output(executor: ForkdExecutor) -> None:
    got = executor("print('printed')\n20 + 22")
    assert (got.output, got.logs.strip(), got.is_final_answer) == ("42", "printed", False)
    assert executor("y = 1").output is None


def test_variables_are_sent_and_stay(executor: ForkdExecutor) -> None:
    executor.send_variables({"sent": {"a": [1, 2]}})
    executor("sent['a'].append(3)")
    assert executor("sent['a']").output == "[1, 2, 3]"


def test_an_error_is_raised(executor: ForkdExecutor) -> None:
    with pytest.raises(AgentError, match="NameError"):
        executor("no_such_name")


def test_a_step_that_takes_too_long(daemon: Daemon) -> None:
    with ForkdExecutor(daemon.snapshot, env=daemon.env, timeout=3) as slow:
        with pytest.raises(AgentError, match="(?s)before.*longer than 3 seconds"):
            slow("import time\nprint('before', flush=True)\ntime.sleep(600)")


def test_an_image(executor: ForkdExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    got = executor(IMAGE).output
    assert isinstance(got, PIL.Image.Image) and got.size == (1, 1)
    monkeypatch.setattr(smolagents, "MAX_PIXELS", 0)
    assert executor(IMAGE).output == "an image of 1 by 1 pixels, which is too large"
    for data in (b"no image", b"\x89PNG\r\n\x1a\n"):  # a result of the guest is no exception of another package
        assert executor(IMAGE.replace(repr(DOT), repr(base64.b64encode(data).decode()))).output == "an unreadable image"
    for answer in ("safe:{", "safe:[1", "x"):
        with pytest.raises(AgentError, match="final answer"):
            executor(f"class FinalAnswerException(Exception): pass\nraise FinalAnswerException({answer!r})")
    for logs in ("", "{}", "[1]", '{"python": "p", "missing": 1}'):
        with monkeypatch.context() as m:
            m.setattr(executor, "run_code_raise_errors", lambda _, logs=logs: CodeOutput(None, logs, False))
            with pytest.raises(AgentError, match="packages"):
                executor.install_packages(["numpy"])


def test_the_end_of_the_sandbox_is_an_error(daemon: Daemon) -> None:
    executor = ForkdExecutor(daemon.snapshot, env=daemon.env)
    executor.sandbox.kill()
    with pytest.raises(AgentError, match=executor.sandbox.id):
        executor("1")
    executor.cleanup()


def test_a_package_that_cannot_be_installed(daemon: Daemon) -> None:
    before = {s.id for s in Sandbox.list()}
    with pytest.raises(AgentError, match="pip could not install --no-such-option"):
        ForkdExecutor(daemon.snapshot, ["pip", "--no-such-option"], env=daemon.env)
    assert {s.id for s in Sandbox.list()} == before, "the sandbox was killed"


def test_arguments(executor: ForkdExecutor) -> None:
    for wrong in ({}, {"snapshot": "a", "sandbox": executor.sandbox}, {"sandbox": executor.sandbox, "network": "none"}):
        with pytest.raises(InvalidArgumentError, match="snapshot"):
            ForkdExecutor(**wrong)


def test_steps_can_be_undone(daemon: Daemon, kept: None) -> None:
    """The agent takes three steps. The second one is undone, and tried again in a fork."""
    write = "with open('/srv/steps', 'a') as f:\n    f.write('{} ')"
    model = Scripted(*(write.format(n) for n in ("one", "two")), write.format("three") + "\nfinal_answer(0)")
    with ForkdExecutor(daemon.snapshot, env=daemon.env, branches=True) as executor:
        CodeAgent([], model, executor=executor).run("write")
        saved = [s.tag for s in executor.branches]
        [third] = executor.fork(3)
        executor.rollback(2)
        assert len(executor.branches) == 2
        assert executor("open('/srv/steps').read()").output == "one "
        assert third("open('/srv/steps').read()").output == "one two "
        third.cleanup()
        client = executor.sandbox.client
    assert len(saved) == 3 and not {s.tag for s in client.snapshots.list()} & set(saved), "cleanup deletes branches"


def test_forks_keep_variables(daemon: Daemon, real: None) -> None:
    with ForkdExecutor(daemon.snapshot, branches=True) as executor:
        executor("x = 1")
        executor("x = 2")
        [older], [now] = executor.fork(2), executor.fork()
        executor.rollback(1)
        with pytest.raises(AgentError, match="NameError"):
            executor("x")
        assert (older("x").output, now("x").output) == ("1", "2")
        older.cleanup()
        now.cleanup()
