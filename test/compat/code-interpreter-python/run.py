"""The Python package e2b-code-interpreter: run_code and its contexts, sync and async."""

from __future__ import annotations

import asyncio
import os

os.environ.update(E2B_API_URL=os.environ["FORKD_URL"], E2B_SANDBOX_URL=os.environ["FORKD_URL"],
                  E2B_API_KEY=os.environ["FORKD_TOKEN"], E2B_VALIDATE_API_KEY="false")

from e2b_code_interpreter import AsyncSandbox, Sandbox  # noqa: E402
from report import TAG, NotApplicable, Report, want  # noqa: E402

r = Report("e2b-code-interpreter (PyPI)")
SLOW = 120  # seconds that the emulated host may take
s = Sandbox.create(TAG, timeout=600, request_timeout=SLOW)


def evaluated() -> None:
    s.run_code("x = 20")
    got = s.run_code("print('out'); x + 1")
    want(got.text == "21" and got.logs.stdout == ["out\n"] and got.error is None, got)
    want(s.run_code("'text'").text == "text", "a text without its quotes")
    want(s.run_code("import numpy; numpy.arange(3)").text == "array([0, 1, 2])", "numpy")


def failed() -> None:
    got = s.run_code("1/0")
    want(got.error.name == "ZeroDivisionError" and "division by zero" in got.error.value, got)
    want("1/0" in got.error.traceback or "ZeroDivisionError" in got.error.traceback, got.error.traceback)
    want(s.run_code("1 +").error.name == "SyntaxError", "a syntax error")


def streamed() -> None:
    out, err, results = [], [], []
    s.run_code("import sys; print('a'); print('b', file=sys.stderr); 7", on_stdout=lambda m: out.append(m.line),
               on_stderr=lambda m: err.append(m.line), on_result=results.append)
    want("".join(out) == "a\n" and "".join(err) == "b\n" and results[0].text == "7", (out, err, results))


def rich() -> None:
    got = s.run_code("class H:\n def _repr_html_(self): return '<b>h</b>'\n def __repr__(self): return 'plain'\nH()").results[0]
    want(got.html == "<b>h</b>" and got.text == "plain" and got.is_main_result, got)


def environment() -> None:
    want(s.run_code("import os; os.environ.get('ONCE')", envs={"ONCE": "1"}).text == "1", "given")
    want(s.run_code("import os; os.environ.get('ONCE')").text is None, "it stayed")


def contexts() -> None:
    c = s.create_code_context(cwd="/tmp")
    want(s.run_code("import os; os.getcwd()", context=c).text == "/tmp", "cwd")
    s.run_code("y = 1", context=c)
    want(s.run_code("y").error.name == "NameError", "contexts share names")
    want(c.id in [k.id for k in s.list_code_contexts()], "not listed")
    s.restart_code_context(c)
    want(s.run_code("y", context=c).error.name == "NameError", "not restarted")
    s.remove_code_context(c)
    want(c.id not in [k.id for k in s.list_code_contexts()], "still listed")


def copied() -> None:
    s.run_code("kept = [1, 2]")
    copy = s.fork()[0]
    want(copy.run_code("kept.append(3); kept").text == "[1, 2, 3]", "its memory")
    want(s.run_code("kept").text == "[1, 2]", "shared memory")
    copy.kill()


def other_languages() -> None:
    raise NotApplicable("the interpreter is Python's alone")


async def as_async() -> None:
    a = await AsyncSandbox.create(TAG, timeout=300, request_timeout=SLOW)
    want((await a.run_code("6 * 7")).text == "42", "run_code")
    c = await a.create_code_context()
    want((await a.run_code("1", context=c)).text == "1", "context")
    await a.restart_code_context(c)
    want(len(await a.list_code_contexts()) == 2, "list")
    await a.remove_code_context(c)
    await a.kill()


r.case("run_code", evaluated)
r.case("run_code, errors", failed)
r.case("run_code, callbacks", streamed)
r.case("run_code, MIME bundles", rich)
r.case("run_code, environment", environment)
r.case("create_code_context list_code_contexts restart_code_context remove_code_context", contexts)
r.case("fork keeps what was computed", copied)
r.case("run_code, other languages", other_languages)
r.case("AsyncSandbox", lambda: asyncio.run(as_async()))
s.kill()
r.finish()
