"""Code in interpreters."""

from __future__ import annotations

import base64
import cProfile
import threading
from typing import Any

import pytest

from forkd import Execution, Sandbox, _execution
from forkd._execution import Collector, Result
from forkd.errors import BadRequestError, InterpreterBusyError, NotFoundInSandboxError


def test_result_output_and_state(sandbox: Sandbox) -> None:
    first = sandbox.run_code("import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    assert first.ok and first.text == "21" and first.results[0].is_main_result and first.execution_count == 1
    assert (first.stdout, first.stderr, first.error) == ("out\n", "err\n", None)
    assert sandbox.run_code("x * 2").text == "40"
    assert sandbox.run_code("").results == []


def test_exception(sandbox: Sandbox) -> None:
    got = sandbox.run_code("1 / 0")
    assert got.error is not None and (got.error.name, got.error.value) == ("ZeroDivisionError", "division by zero")
    assert "ZeroDivisionError" in got.error.traceback and not got.ok and got.outcome == "exception"


def test_rich_results_and_callbacks(sandbox: Sandbox) -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    code = f"""
class Rich:
    def __repr__(self): return "rich"
    def _repr_html_(self): return "<b>rich</b>"
    def _repr_png_(self): return "{png}"
    def _repr_json_(self): return {{"a": [1, 2]}}
display(Rich())
print("between")
Rich()
"""
    seen: list[Any] = []
    got = sandbox.run_code(code, on_result=seen.append, on_stdout=seen.append)
    assert [r.is_main_result for r in got.results] == [False, True], got
    rich = got.results[1]
    assert (rich.text, rich.html, rich.png, rich.json) == ("rich", "<b>rich</b>", png, {"a": [1, 2]})
    assert [s for s in seen if s != "between\n"] == got.results and len(seen) == 3
    assert set(rich.formats()) >= {"text", "html", "png", "json"}


def test_an_execution_has_a_bound(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_execution, "MAX_KEPT", 4096)
    assert not sandbox.run_code("print('short')").truncated
    printed: list[str] = []
    shown: list[Result] = []
    code = "for n in range(100): print('x' * 99, flush=True)\nfor n in range(9): display(n)\n'end'"
    got = sandbox.run_code(code, on_stdout=printed.append, on_result=shown.append)
    assert got.ok and got.truncated and len("".join(printed)) == 10_000 and len(shown) == 10
    assert len(got.stdout) <= 4096 and "".join(printed).startswith(got.stdout) and got.results == shown[:4]


def test_an_execution_keeps_64_mib() -> None:
    kept, part = Collector(), "x" * (1 << 20)
    kept.output("stdout", "fits")
    assert not kept.execution.truncated
    for _ in range(100):
        kept.output("stdout", part)
        kept.output("stderr", part)
    kept.output("stdout", "late")
    large, main = Result(), Result(True, "main")
    for _ in range(3):
        kept.result(large, 30 << 20)
    kept.result(main, 100)
    got = kept.execution
    assert (len(got.stdout), len(got.stderr), got.truncated) == ((63 << 20) + 4, 64 << 20, True)
    assert got.results == [large, large, main] and got.text == "main" and "late" not in got.logs.stdout
    many = Collector()
    for _ in range(1 << 21):
        many.output("stdout", "x")
    assert len(many.execution.logs.stdout) == 1 << 20


def test_timeout_and_environment(sandbox: Sandbox) -> None:
    assert sandbox.run_code("import os; os.environ['A']", env={"A": "b"}).text == "b"
    got = sandbox.run_code("import time\ntime.sleep(100)", timeout=0.5)
    assert (
        got.timed_out and got.error is not None and got.error.name in ("Timeout", "KeyboardInterrupt", "TimeoutError")
    )


def test_contexts(sandbox: Sandbox) -> None:
    context = sandbox.contexts.create(cwd="/usr")
    assert context.language == "python" and context.cwd == "/usr"
    assert sandbox.run_code("y = 5", context=context).ok
    assert sandbox.run_code("y", context=context.id).text == "5"
    assert sandbox.run_code("y").error is not None, "the default interpreter has other variables"
    assert context.id in [c.id for c in sandbox.contexts.list()]
    sandbox.contexts.restart(context)
    assert sandbox.run_code("y", context=context).error is not None
    assert sandbox.contexts.interrupt(context) is False
    assert sandbox.contexts.remove(context) is True and sandbox.contexts.remove(context) is False
    with pytest.raises(NotFoundInSandboxError):
        sandbox.run_code("1", context=context)
    with pytest.raises(BadRequestError):
        sandbox.run_code("1", language="cobol")


def test_interrupt_while_code_runs(sandbox: Sandbox) -> None:
    results: list[Execution] = []
    started = threading.Event()
    runner = threading.Thread(
        target=lambda: results.append(
            sandbox.run_code("print('on')\nimport time\ntime.sleep(100)", on_stdout=lambda _: started.set())
        )
    )
    runner.start()
    assert started.wait(30)
    assert sandbox.contexts.interrupt() is True
    runner.join(30)
    assert results[0].error is not None and results[0].error.name == "KeyboardInterrupt"


def test_busy_interpreter(sandbox: Sandbox) -> None:
    started = threading.Event()
    runner = threading.Thread(
        target=lambda: sandbox.run_code("print('on')\nimport time\ntime.sleep(20)", on_stdout=lambda _: started.set())
    )
    runner.start()
    assert started.wait(30)
    with pytest.raises(InterpreterBusyError) as caught:
        sandbox.run_code("1")
    assert caught.value.retry_after == 5
    sandbox.contexts.restart()
    runner.join(30)


def test_eval_of_05(sandbox: Sandbox) -> None:
    assert sandbox.eval("'a' * 2") == "'aa'" and sandbox.eval("x = 1") is None
    with pytest.raises(RuntimeError, match="NameError"):
        sandbox.eval("nothing_of_that_name")


def test_notebook_display() -> None:
    execution = Execution(
        [
            Result.of({"main": True, "data": {"text/plain": "<Figure>", "image/png": "AAAA"}}),
            Result.of({"data": {"text/html": "<table></table>", "text/plain": "t"}}),
            Result.of({"data": {"text/plain": "1 < 2"}}),
        ]
    )
    execution.logs.stdout.append("a < b\n")
    html = execution._repr_html_()
    assert (
        "a &lt; b" in html
        and 'src="data:image/png;base64,AAAA"' in html
        and "<table></table>" in html
        and "1 &lt; 2" in html
    )
    assert execution.results[0]._repr_mimebundle_() == {"text/plain": "<Figure>", "image/png": "AAAA"}
    execution.end({"outcome": "died", "state_lost": True})
    assert execution.error is not None and execution.state_lost and "InterpreterDied" in execution._repr_html_()
    assert str(execution.results[0]) == "<Figure>" and str(Result(png="AAAA")) == "Result(png)"


def test_a_call_costs_little(sandbox: Sandbox) -> None:
    """The cost of a run for the client is counted in calls of functions, including those of Python and
    httpx2, because time says little on a busy host. If httpx2 made the URL and the headers of a request, the
    request would take 500 calls more."""
    sandbox.run_code("1+1")
    profile = cProfile.Profile()
    for _ in range(20):
        profile.runcall(sandbox.run_code, "1+1")
    calls = sum(entry.callcount for entry in profile.getstats()) / 20
    assert calls < 1750, calls
