"""An executor for smolagents (pip install 'forkd[smolagents]'):

    from forkd.integrations.smolagents import ForkdExecutor
    from smolagents import CodeAgent

    with ForkdExecutor("python-numpy", branches=True) as executor:
        agent = CodeAgent([], model, executor=executor)
        agent.run("fix the test")
        executor.rollback(2)               # the variables, files and processes before the second step
        [other] = executor.fork(2)         # another executor, for another attempt at the second step

The steps of an agent run in one interpreter, which keeps the variables. The image needs Python 3.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import PIL.Image
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import Tool, get_tools_definition_code
from smolagents.utils import AgentError

from .._errors import ForkdError, InvalidArgumentError
from .._execution import Result
from .._sync._sandbox import Sandbox
from .._sync._snapshot import Snapshot

MAX_PIXELS = 64 << 20  # of an image that a step returns

_FINAL = "final_answer"
_OPTIONAL = {"PIL", "numpy"}
# Tells the path of the interpreter, and which of some packages are not installed for it.
_MISSING = """
def _missing(names):
    import importlib.metadata, json, sys
    missing = []
    for name in names:
        try:
            importlib.metadata.distribution(name)
        except Exception:
            missing.append(name)
    print(json.dumps({{"python": sys.executable, "missing": missing}}))
_missing({0!r})
del _missing
"""
_FORMS = ("chart", "data", "html", "javascript", "json", "latex", "markdown", "pdf", "svg", "text")  # in this order


class ForkdExecutor(RemotePythonExecutor):
    """Runs the code of an agent in a sandbox, which cleanup kills."""

    def __init__(
        self,
        snapshot: str | None = None,
        additional_imports: Sequence[str] = (),
        logger: AgentLogger | None = None,
        allow_pickle: bool = False,
        *,
        sandbox: Sandbox | None = None,
        branches: bool = False,
        timeout: float = 600,
        **options: Any,
    ) -> None:
        """Forks a sandbox from snapshot, with the options of Sandbox.create, or uses sandbox. additional_imports are
        installed with pip, from the package index that the network of the sandbox allows. With branches, the sandbox
        is saved before every step. timeout is the limit of a step in seconds, at most 3600."""
        if (snapshot is None) == (sandbox is None) or sandbox is not None and options:
            raise InvalidArgumentError(
                "snapshot: give either a snapshot and its options, or a sandbox", field="snapshot"
            )
        super().__init__(list(additional_imports), logger or AgentLogger(level=LogLevel.ERROR), allow_pickle)
        self.sandbox = sandbox or Sandbox.create(snapshot, **options)
        self.branches: list[Snapshot] = []
        """The sandbox before each step, if branches was given."""
        self._saved: list[Snapshot] = []  # all branches made, in their order
        self._saves, self._timeout = branches, timeout
        self._life = {k: options[k] for k in ("ttl", "idle_timeout") if k in options}
        try:
            self.installed_packages = self.install_packages(self.additional_imports)
        except BaseException:
            self.cleanup()
            raise

    # Methods that only forkd's executor has.

    def rollback(self, step: int) -> None:
        """Takes the sandbox back to the moment before step number step, from 1. Forgets later branches."""
        self.sandbox.rollback(self.branches[step - 1])
        del self.branches[step:]

    def fork(self, step: int | None = None, n: int = 1) -> list[ForkdExecutor]:
        """Returns n executors that go on from the moment before a step, or from now."""
        source = self.sandbox if step is None else self.branches[step - 1]
        executors = []
        for made in source.fork(n, **self._life):
            executor = ForkdExecutor(
                sandbox=made,
                logger=self.logger,
                allow_pickle=self.allow_pickle,
                branches=self._saves,
                timeout=self._timeout,
            )
            executor._life = self._life
            executors.append(executor)
        return executors

    # The interface of smolagents.

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs a step of the agent."""
        if self._saves:
            self._saved.append(self.sandbox.branch()[0])
            self.branches.append(self._saved[-1])
        return self.run_code_raise_errors(code_action)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs code, and raises AgentError if the code does."""
        try:
            run = self.sandbox.run_code(code, timeout=self._timeout)
        except ForkdError as e:
            raise AgentError(f"the sandbox {self.sandbox.id} could not run the code: {e}", self.logger) from e
        if run.error is None:
            main = next((r for r in run.results if r.is_main_result), None)
            return CodeOutput(output=None if main is None else _output(main), logs=run.stdout, is_final_answer=False)
        if run.error.name == self.FINAL_ANSWER_EXCEPTION:
            try:
                answer = self._deserialize_final_answer(run.error.value, self.allow_pickle)
            except Exception as e:  # the guest wrote it
                raise AgentError(f"the final answer is unreadable: {e}", self.logger) from e
            return CodeOutput(output=answer, logs=run.stdout, is_final_answer=True)
        if run.timed_out:
            raise AgentError(
                f"{run.stdout}\nThe code was stopped: it took longer than {self._timeout} seconds", self.logger
            )
        message = f"{run.stdout}\nExecuting code yielded an error:\n{run.error}\n{run.error.traceback}"
        raise AgentError(message, self.logger)

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Defines tools in the interpreter, and installs the packages that they import."""
        super().send_tools({name: tool for name, tool in tools.items() if name != _FINAL})
        if (final := tools.get(_FINAL)) is None:
            return
        self._patch_final_answer_with_exception(final)
        needed = set(final.to_dict()["requirements"]) - _OPTIONAL - {"smolagents"}
        self.installed_packages += self.install_packages(sorted(needed))
        # The tool imports some packages only for values of their types, and works without them.
        code = re.sub(
            rf"^import ({'|'.join(sorted(_OPTIONAL))})$",
            r"try:\n    import \1\nexcept ImportError:\n    pass",
            get_tools_definition_code({_FINAL: final}),
            flags=re.MULTILINE,
        )
        self.logger.log(self.run_code_raise_errors(code).logs)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Installs with pip the packages that the interpreter of the steps lacks."""
        if not additional_imports:
            return additional_imports
        logs = self.run_code_raise_errors(_MISSING.format(additional_imports)).logs
        try:
            asked = json.loads(logs)
            python, missing = str(asked["python"]), [str(name) for name in asked["missing"]]
        except (ValueError, TypeError, KeyError, RecursionError) as e:  # the guest wrote it
            raise AgentError(f"the interpreter's packages are unknown: {logs[:200]!r}", self.logger) from e
        if missing:
            done = self.sandbox.commands.run(
                [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--", *missing],
                timeout=3600,
            )
            if not done.ok:
                names = ", ".join(missing)
                raise AgentError(f"pip could not install {names}: {done.stderr or done.error}", self.logger)
        return additional_imports

    def cleanup(self) -> None:
        """Kills the sandbox and deletes its branches, except those that a sandbox or another snapshot needs."""
        self.sandbox.kill()
        for snapshot in reversed(self._saved):  # a branch needs the branches before it
            with suppress(ForkdError):
                snapshot.delete()
        self._saved.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.cleanup()


def _output(result: Result) -> Any:
    """The value of a step: an image, or the first form that the value has."""
    for form in ("jpeg", "png"):
        if (data := getattr(result, form)) is not None:
            try:
                image = PIL.Image.open(io.BytesIO(base64.b64decode(data)), formats=[form.upper()])
            except Exception:  # the guest wrote it, and Pillow raises errors of many classes
                return "an unreadable image"
            if image.width * image.height > MAX_PIXELS:  # not decoded yet
                return f"an image of {image.width} by {image.height} pixels, which is too large"
            return image
    return next((value for form in _FORMS if (value := getattr(result, form)) is not None), None)
