"""Runs code in warm interpreters."""

from __future__ import annotations

from builtins import list as List
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import _args
from .._answers import problem_of
from .._errors import StreamBrokenError
from .._execution import Collector, Execution, ExecutionError, Result, context_id
from .._lines import Lines
from .._output import event_of
from .._wire import CodeContext
from . import _runtime

if TYPE_CHECKING:
    from ._sandbox import AsyncSandbox

Context = CodeContext | str


async def run_code(
    sandbox: AsyncSandbox,
    code: str,
    language: str | None,
    context: Context | None,
    on_stdout: Callable[[str], Any] | None,
    on_stderr: Callable[[str], Any] | None,
    on_result: Callable[[Result], Any] | None,
    timeout: float | None,
    env: Mapping[str, str] | None,
) -> Execution:
    """See AsyncSandbox.run_code."""
    if language is not None and context is not None:
        raise _args.wrong("language", language, "no language together with context, which has its own")
    body = _args.given(
        code=_args.text("code", code, empty=True),
        language=_args.optional_text("language", language),
        context_id=_args.optional_text("context", context_id(context)),
        timeout_secs=_args.seconds("timeout", timeout, most=3600),
        env=_args.env(env),
    )
    kept, ended, lines = Collector(), False, Lines()
    execution = kept.execution
    transport = sandbox._transport
    async with transport.stream(
        "POST", sandbox._path("/code"), json=body, headers={"Accept": "application/x-ndjson"}
    ) as response:
        async for chunk in transport.chunks(response, "the stream of the code"):
            for line in lines.feed(chunk):
                event = event_of(line)
                if event.get("error"):
                    raise problem_of(event["error"], event.get("code", ""), event.get("status", 0))
                if text := event.get("stdout"):
                    kept.output("stdout", text)
                    await _runtime.resolved(on_stdout and on_stdout(text))
                if text := event.get("stderr"):
                    kept.output("stderr", text)
                    await _runtime.resolved(on_stderr and on_stderr(text))
                if shown := event.get("result"):
                    result = Result.of(shown)
                    kept.result(result, len(line))
                    await _runtime.resolved(on_result and on_result(result))
                if raised := event.get("exception"):
                    execution.error = ExecutionError(
                        raised.get("name", ""), raised.get("value", ""), raised.get("traceback", "")
                    )
                if (end := event.get("end")) is not None:
                    execution.end(end)
                    ended = True
    if not ended:
        raise StreamBrokenError("the stream of the code broke off before its end: the daemon went away")
    return execution


class AsyncContexts:
    """The interpreters of a sandbox. Each has its own variables, and runs one call at a time. The id of a
    default interpreter of run_code is its language."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def create(self, language: str | None = None, *, cwd: str | None = None) -> CodeContext:
        """Starts an interpreter, by default of Python and in the user's home."""
        body = _args.given(
            language=_args.optional_text("language", language), cwd=None if cwd is None else _args.path("cwd", cwd)
        )
        return CodeContext.from_json((await self._sandbox._call("POST", "/contexts", body, once=True)).json())

    async def list(self) -> List[CodeContext]:
        """All interpreters."""
        return [CodeContext.from_json(c) for c in (await self._sandbox._call("GET", "/contexts")).json()]

    async def restart(self, context: Context | None = None) -> None:
        """Replaces an interpreter, by default that of Python. Running code ends, and the variables are lost."""
        await self._sandbox._call("POST", "/eval/restart", self._body(context))

    async def interrupt(self, context: Context | None = None) -> bool:
        """Interrupts the code in an interpreter once, as Ctrl-C does. Returns False if no code was running."""
        answer = await self._sandbox._call("POST", "/eval/interrupt", self._body(context))
        return bool(answer.json().get("interrupted"))

    async def remove(self, context: Context) -> bool:
        """Ends an interpreter. Returns False if there is no interpreter with that id."""
        from .._codes import NotFoundInSandboxError

        id = _args.text("context", context_id(context))
        try:
            await self._sandbox._call("DELETE", f"/contexts/{quote(id, safe='')}")
        except NotFoundInSandboxError:
            return False
        return True

    def _body(self, context: Context | None) -> dict[str, Any]:
        return _args.given(context_id=_args.optional_text("context", context_id(context)))
