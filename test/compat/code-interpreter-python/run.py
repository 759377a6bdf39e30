"""The Python package e2b-code-interpreter: run_code and its contexts, sync and async, and the classes of
their results."""

from __future__ import annotations

import asyncio
import inspect
import os
import re

os.environ.update(E2B_API_URL=os.environ["FORKD_URL"], E2B_SANDBOX_URL=os.environ["FORKD_URL"],
                  E2B_API_KEY=os.environ["FORKD_TOKEN"], E2B_VALIDATE_API_KEY="false")

import hostnames  # noqa: E402
from e2b import CommandHandle, SandboxException, Template, TimeoutException  # noqa: E402
from e2b.sandbox_sync.commands.command import Commands  # noqa: E402
from e2b.sandbox_sync.commands.pty import Pty  # noqa: E402
from e2b.sandbox_sync.filesystem.filesystem import Filesystem  # noqa: E402
from e2b_code_interpreter import AsyncSandbox, Execution, ExecutionError, Logs, Result, Sandbox  # noqa: E402
from report import AGE, Report, offers, recorded, want  # noqa: E402

TAG = os.environ["COMPAT_INTERPRETER_TAG"]
SLOW = 300  # seconds that the emulated host may take
DEFAULT = {"python", "javascript"}  # languages of the contexts that exist from the beginning


def unknown_names() -> list[str]:
    """Names that docs/sdk.md attributes to E2B's SDK, but that it does not have."""
    places = {"Sandbox": Sandbox, "sandbox": Sandbox, "sandbox.commands": Commands, "sandbox.pty": Pty,
              "sandbox.files": Filesystem, "handle": CommandHandle, "Template": Template}
    with open("docs/sdk.md") as f:
        table = f.read().partition("<!-- e2b:")[2].partition("<!-- end of e2b -->")[0]
    missing = []
    for row in table.splitlines()[3:]:
        for path, args in re.findall(r"`([\w.]+)(?:\(([^)`]*)\))?`", row.split("|")[2]):
            place, _, name = path.rpartition(".")
            method = getattr(places[place], name, None)
            # If a class and its objects have the same method, the signature is that for objects.
            known = set(inspect.signature(method).parameters) | {"sandbox_id"} if args and method else set()
            if method is None or not set(filter(None, args.split(", "))) <= known:
                missing.append(f"{path}({args})")
    return missing


missing = unknown_names()  # before methods are wrapped
used: dict[str, set[str]] = {}
public = {}
for cls in (Sandbox, AsyncSandbox, Execution, ExecutionError, Logs, Result):
    used[cls.__name__] = set()
    public[cls.__name__] = recorded(cls, used[cls.__name__])

if AGE:
    hostnames.begin()  # this package runs code only at https://49999-ID.DOMAIN

r = Report("e2b-code-interpreter (PyPI)")
s = Sandbox.create(TAG, timeout=3600, request_timeout=SLOW, envs={"GIVEN": "at create"})


def run(code: str, **options) -> Execution:
    return s.run_code(code, timeout=SLOW, request_timeout=SLOW, **options)


def raises(exception: type, call) -> Exception:
    try:
        call()
    except exception as e:
        return e
    raise AssertionError(f"no {exception.__name__}")


def nothing_imported_again() -> None:
    # This is the first code that the sandbox runs. From the hook on, the interpreter reports every file that it
    # opens.
    got = run("""
import sys
before, opened, watching = set(sys.modules), [], True
sys.addaudithook(lambda event, args: watching and event == "open" and opened.append(str(args[0])))
import numpy, scipy.stats, scipy.optimize, pandas, matplotlib.pyplot as plt
numpy.linalg.inv(numpy.eye(2)), scipy.stats.norm.cdf(0), pandas.DataFrame({"a": [1]})._repr_html_()
plt.plot([0, 1])
plt.show()
watching = False
opened = [f for f in opened if f.endswith((".py", ".pyc", ".so"))]
sorted(set(sys.modules) - before)[:5], opened[:5]  # the beginning is enough to read
""")
    want(got.error is None and got.text == "([], [])", got)


def evaluated() -> None:
    run("x = 20")
    got = run("print('out'); x + 1")
    want(got.text == "21" and got.logs.stdout == ["out\n"] and got.error is None, got)
    want(got.logs.to_json() and "21" in got.to_json(), "to_json")
    want(run("'text'").text == "text", "a text without its quotes")
    want(run("    import numpy\n    numpy.arange(3)").text == "array([0, 1, 2])", "indented code")
    first, second = run("1"), run("1")
    want(second.execution_count == first.execution_count + 1, (first, second))


def of_jupyter() -> None:
    got = run("!echo $GIVEN").logs.stdout
    want("".join(got).split() == ["at", "create"], got)  # lines of a terminal end with \r\n
    want("per loop" in "".join(run("%timeit -n1 -r1 1").logs.stdout), "%timeit")


def failed() -> None:
    got = run("def f(): return 1/0\nf()")
    want(got.error.name == "ZeroDivisionError" and got.error.value == "division by zero", got)
    want("1/0" in got.error.traceback and "\x1b" not in got.error.traceback and got.error.to_json(), got.error.traceback)
    want(run("1 +").error.name == "SyntaxError", "a syntax error")


def streamed() -> None:
    out, err, results, errors = [], [], [], []
    run("import sys; print('a'); print('b', file=sys.stderr); 7", on_stdout=lambda m: out.append(m.line),
        on_stderr=lambda m: err.append(m.line), on_result=results.append)
    run("missing", on_error=errors.append)
    want("".join(out) == "a\n" and "".join(err) == "b\n" and results[0].text == "7", (out, err, results))
    want([e.name for e in errors] == ["NameError"], errors)


FORMS = {"html": "<b>", "markdown": "*m*", "svg": "<svg/>", "latex": "$l$", "javascript": "1", "png": "cG5n",
         "jpeg": "anBn", "pdf": "cGRm", "json": {"k": 1}}


def rich() -> None:
    got = run("""
class Rich:
    def __repr__(self): return "plain"
    def _repr_html_(self): return "<b>"
    def _repr_markdown_(self): return "*m*"
    def _repr_svg_(self): return "<svg/>"
    def _repr_latex_(self): return "$l$"
    def _repr_javascript_(self): return "1"
    def _repr_png_(self): return b"png"
    def _repr_jpeg_(self): return b"jpg"
    def _repr_pdf_(self): return b"pdf"
    def _repr_json_(self): return {"k": 1}
    def _repr_mimebundle_(self, **_): return {"application/x-own": "own"}
display(1)
Rich()""")
    want([x.is_main_result for x in got.results] == [False, True] and got.text == "plain", got)
    main = got.results[1]
    for form, value in FORMS.items():
        found = getattr(main, form)
        want((found.strip() if isinstance(found, str) else found) == value, (form, found))
        getattr(main, f"_repr_{form}_")()
    want(main.extra == {"application/x-own": "own"} and set(FORMS) <= set(main.formats()), main.formats())


def tables_and_charts() -> None:
    frame = run("import pandas as pd; pd.DataFrame({'a': [1, 2], 't': pd.to_datetime(['2020-01-02', None])})").results[0]
    want(frame.data == {"a": [1, 2], "t": ["2020-01-02T00:00:00", None]} and "<table" in frame.html, frame.data)
    for code, kind in {"plt.plot([1, 2], [3, 4])": "line", "plt.scatter([1], [2])": "scatter", "plt.bar(['A', 'B'], [3, 5])": "bar",
                       "plt.pie([1, 2], labels=['a', 'b'])": "pie", "plt.boxplot([[1, 2, 3, 4, 9]], patch_artist=True)": "box_and_whisker"}.items():
        shown = [x for x in run(f"import matplotlib.pyplot as plt\n{code}\nplt.title('T')\nplt.show()").results if x.png]
        want(len(shown) == 1 and shown[0].chart.type.value == kind and shown[0].chart.title == "T", (kind, shown))
    figure = "f, (a, b) = plt.subplots(2)\na.plot([1, 2]); b.bar(['x', 'y'], [1, 2])\nplt.show()"
    want([c.type.value for c in run(figure).results[0].chart.elements] == ["line", "bar"], "superchart")


def environment(language: str, read: str) -> None:
    want(run(read, language=language, envs={"ONCE": "1"}).logs.stdout == ["1\n"], language)
    want(run(read, language=language).logs.stdout == ["gone\n"], f"{language}: it stayed")


def environments() -> None:
    environment("python", "import os; print(os.environ.get('ONCE', 'gone'))")
    environment("bash", "echo ${ONCE-gone}")


def contexts() -> None:
    want(DEFAULT <= {c.language for c in s.list_code_contexts()}, "the default contexts")
    c = s.create_code_context(cwd="/tmp", request_timeout=SLOW)
    want(run("import os; os.getcwd()", context=c).text == "/tmp", "cwd")
    run("y = 1", context=c)
    want(run("y").error.name == "NameError", "contexts share names")
    want(c.id in [k.id for k in s.list_code_contexts()], "not listed")
    s.restart_code_context(c)
    want(run("y", context=c).error.value == "name 'y' is not defined", "not restarted")
    s.remove_code_context(c)
    want(c.id not in [k.id for k in s.list_code_contexts()], "still listed")


def interrupted() -> None:
    run("import time; kept = 1")
    raises(TimeoutException, lambda: s.run_code("time.sleep(1000)", timeout=3))
    want(run("kept").text == "1", "the state")


def copied() -> None:
    offers(Sandbox, "fork")
    run("import random; memory = [1, 2]; random.seed(1)")
    copies = s.fork(count=2, request_timeout=SLOW)
    drawn = {c.run_code("memory.append(3); memory, random.random()", timeout=SLOW).text for c in copies}
    want(len(drawn) == 2 and all(d.startswith("([1, 2, 3], ") for d in drawn), drawn)
    want(run("memory").text == "[1, 2]", "shared memory")
    for copy in copies:
        copy.kill()


def node() -> None:
    environment("js", "console.log(process.env.ONCE ?? 'gone')")
    want(run("const a: number = 41; a + 1", language="ts").text == "42", "TypeScript")
    want(run("await Promise.resolve({a: [1]})", language="javascript").text == "{ a: [ 1 ] }", "JavaScript")


def bash() -> None:
    run("z=5; cd /tmp", language="bash")
    got = run("echo $z; pwd; exit_status() { return 3; }; exit_status", language="bash")
    want("".join(got.logs.stdout) == "5\n/tmp\n" and got.error.value == "3", got)
    want("not supported" in str(raises(SandboxException, lambda: run("1", language="cobol"))), "a language that is not there")


async def as_async() -> None:
    a = await AsyncSandbox.create(TAG, timeout=600, request_timeout=SLOW)
    want((await a.run_code("6 * 7", timeout=SLOW)).text == "42", "run_code")
    c = await a.create_code_context(request_timeout=SLOW)
    want((await a.run_code("1", context=c, timeout=SLOW)).text == "1", "context")
    await a.restart_code_context(c)
    want(len(await a.list_code_contexts()) == 1 + len(DEFAULT), "list")
    await a.remove_code_context(c)
    await a.kill()


r.case("the SciPy stack is warm: nothing is imported again", nothing_imported_again)
if not AGE:
    r.case("docs/sdk.md names E2B's methods as they are", lambda: want(not missing, missing))
r.case("run_code", evaluated)
r.case("run_code, magic commands", of_jupyter)
r.case("run_code, errors", failed)
r.case("run_code, callbacks", streamed)
r.case("run_code, MIME bundles", rich)
r.case("run_code, tables and charts", tables_and_charts)
r.case("run_code, environment", environments)
r.case("create_code_context list_code_contexts restart_code_context remove_code_context", contexts)
r.case("run_code, a client that leaves", interrupted)
r.case("fork keeps what was computed, but for random numbers", copied)
r.case("run_code, JavaScript and TypeScript", node)
r.case("run_code, Bash, and a language that is not there", bash)
r.case("AsyncSandbox", lambda: asyncio.run(as_async()))
for name, names in public.items():
    r.covered(f"method of {name}", names, used[name])
s.kill()
r.finish()
