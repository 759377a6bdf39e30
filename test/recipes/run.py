"""Builds the recipes that come with forkd, and shows in forks of each that it keeps its promises.

RECIPES selects some of them (default: all recipes below). If $PIP_CERT is set, a proxy stands between this
host and PyPI. A recipe whose warm-up installs from PyPI then gets the certificate authorities of that file,
and a network that reaches private addresses. `make recipes` runs this.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable

from forkd import Sandbox
from report import Report, want

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
LIMIT = 900.0  # seconds for one command: an emulated CPU is slow
report = Report("recipes")


def run(sandbox: Sandbox, command: str, **options: str) -> str:
    """The output of a command, which must succeed."""
    result = sandbox.commands.run(command, timeout=LIMIT, **options)
    want(result.exit_code == 0, f"{command}: exit code {result.exit_code}\n{result.stdout}{result.stderr}")
    return result.stdout.strip()


def python_numpy(kids: list[Sandbox]) -> None:
    for kid in kids:
        want(kid.eval("numpy.zeros(5).tolist()") == "[0.0, 0.0, 0.0, 0.0, 0.0]", "numpy is not imported")
        want(kid.eval("float(np.arange(4).sum())") == "6.0", "np is not imported")


def jupyter_kernel(kids: list[Sandbox]) -> None:
    want(kids[0].eval("sklearn.datasets.load_iris().data.shape") == "(150, 4)", "sklearn")
    want(kids[1].eval("sorted(numpy.linalg.eigvals(numpy.diag([2.0, 1.0])).tolist())") == "[1.0, 2.0]", "numpy")
    want(kids[2].eval("str(sympy.diff(sympy.Symbol('x')**2)) + seaborn.__name__") == "'2*xseaborn'", "sympy, seaborn")
    for kid in kids:
        warm = kid.eval("all(m in __import__('sys').modules for m in ('sklearn', 'seaborn', 'sympy', 'pandas'))")
        want(warm == "True", "something was not imported before the snapshot")


def coding_agent(kids: list[Sandbox]) -> None:
    for tool in ("git --version", "gh --version", "ruff --version", "black --version", "mypy --version",
                 "pytest --version", "rg --version"):
        run(kids[0], tool)
    answers = ["n + n", "n * 3", '"n"']  # right; wrong; of the wrong type
    outcomes = []
    for kid, answer in zip(kids, answers, strict=True):
        run(kid, f"mkdir -p /work && cd /work && git init -q . && "
                 f"printf 'def double(n: int) -> int:\\n    return {answer}\\n' >code.py && "
                 f"printf 'from code import double\\n\\n\\ndef test_it() -> None:\\n    assert double(2) == 4\\n' "
                 f">test_code.py && ruff check -q . && git add -A && "
                 f"git -c user.name=a -c user.email=a@localhost commit -qm try")
        test = kid.commands.run("cd /work && mv code.py mycode.py && sed -i s/code/mycode/ test_code.py && pytest -q",
                                timeout=LIMIT)
        types = kid.commands.run("cd /work && mypy --cache-dir /root/.cache/mypy mycode.py", timeout=LIMIT)
        outcomes.append((test.exit_code, types.exit_code))
    want(outcomes == [(0, 0), (1, 0), (1, 1)], f"(pytest, mypy) ended with {outcomes}")


def nodejs(kids: list[Sandbox]) -> None:
    want(run(kids[0], "node -p '[1, 2, 3].map(n => n * 2).join()'") == "2,4,6", "node")
    want(run(kids[0], "echo 'const n: number = 6; console.log(n * 7)' | esbuild --loader=ts | node -") == "42", "esbuild")
    want(kids[1].run_code("[1, 2, 3].map(n => n + 1)[2]", language="javascript").text == "4", "a context of JavaScript")
    want(re.fullmatch(r"\d+\.\d+\.\d+", run(kids[2], "npm --version")), "npm")
    keys = {run(kid, "node -p 'crypto.randomBytes(16).toString(\"hex\")'") for kid in kids}
    want(len(keys) == len(kids), "children have the same random numbers")


def postgres_fixture(kids: list[Sandbox]) -> None:
    server = {run(kid, "head -n 1 /var/lib/postgresql/15/main/postmaster.pid") for kid in kids}
    want(len(server) == 1, f"the server was started anew: process {server}")
    for kid in kids:
        name = kid.id
        run(kid, f"psql -qU postgres test -c \"INSERT INTO items (name) VALUES ('{name}')\"")
    for kid in kids:
        rows = run(kid, "psql -qAtU postgres test -c 'SELECT count(*), min(name) FROM items'")
        want(rows == f"1|{kid.id}", f"rows: {rows}")


def java_jvm(kids: list[Sandbox]) -> None:
    answers = [run(kid, "curl -fs http://127.0.0.1:8080/") for kid in kids]
    want(len(set(answers)) == 1, f"children began from different states: {answers}")
    pid, request, classes = map(int, re.findall(r"\d+", answers[0]))
    want(request > 50 and classes > 1000, f"the JVM is not warm: {answers[0]}")
    want(f" {request + 1}, " in run(kids[0], "curl -fs http://127.0.0.1:8080/"), "the first child does not count on")
    want("Warm" in run(kids[1], f"cat /proc/{pid}/cmdline | tr '\\0' ' '"), "the answer is not from the JVM")


def playwright_browser(kids: list[Sandbox]) -> None:
    browsers = {run(kid, "curl -fs http://127.0.0.1:9222/json/version | grep webSocketDebuggerUrl") for kid in kids}
    want(len(browsers) == 1, "the browser was started anew")
    for i, kid in enumerate(kids):
        title = run(kid, f"shot 'data:text/html,<title>page {i}</title><h1>{kid.id}</h1>' /tmp/page.png")
        want(title == f"page {i}", title)
        want(kid.files.read("/tmp/page.png", format="bytes").startswith(b"\x89PNG\r\n"), "that is no PNG")


def torch_cpu(kids: list[Sandbox]) -> None:
    sines = {kid.eval("round(net(torch.tensor([[1.5]])).item(), 6)") for kid in kids}
    want(len(sines) == 1 and abs(float(sines.pop()) - 0.9975) < 0.05, f"the model was not trained: {sines}")
    want(kids[0].eval("sum(p.numel() for p in net.parameters())") == "1153", "that is another model")
    drawn = {kid.eval("torch.rand(2).tolist()") for kid in kids}
    want(len(drawn) == len(kids), f"children have the same random numbers: {drawn}")
    want(kids[1].eval("float((np.eye(2) @ torch.ones(2).numpy()).sum())") == "2.0", "numpy")


# The answer of a JupyterLab kernel, from inside the sandbox.
ASK = """
import glob, sys
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.execute_interactive(sys.argv[2], timeout=600)
"""


def agent_workbench(kids: list[Sandbox]) -> None:
    kernels = {run(kid, "curl -fs http://127.0.0.1:8888/api/kernels | grep -o '\"id\": *\"[^\"]*\"'") for kid in kids}
    want(len(kernels) == 1, f"the kernel was started anew: {kernels}")
    browsers = {run(kid, "curl -fs http://127.0.0.1:9222/json/version | grep webSocketDebuggerUrl") for kid in kids}
    want(len(browsers) == 1, "the browser was started anew")
    pictures = set()
    for i, kid in enumerate(kids):
        kid.files.write("/tmp/ask.py", ASK)
        kernel = "$(ls /home/user/.local/share/jupyter/runtime/kernel-*.json)"
        want(run(kid, f"python3 /tmp/ask.py {kernel} 'x = {i} * 7; print(x)'") == str(i * 7), "the kernel")
        run(kid, f"curl -fs -X PUT 'http://127.0.0.1:9222/json/new?data:text/html,<title>page-{i}</title><h1>{kid.id}'")
        seen = "curl -fs http://127.0.0.1:9222/json/list | grep -q 'page-%d'" % i
        run(kid, f"for n in $(seq 300); do {seen} && exit 0 || sleep 1; done; exit 1")
        want("vnc" in run(kid, "curl -fs http://127.0.0.1:6080/vnc.html | grep -i -m 1 title").lower(), "noVNC")
        hello = run(kid, "exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/5901; head -c 11 <&3'")
        want(hello == "RFB 003.008", f"the VNC server said {hello!r}")
        run(kid, "sleep 5; runuser -u user -- scrot -o /tmp/desktop.png")
        pictures.add(kid.files.read("/tmp/desktop.png", format="bytes"))
    want(len(pictures) == len(kids), "children show the same desktop")
    want(all(p.startswith(b"\x89PNG\r\n") for p in pictures), "that is no PNG")


CASES: dict[str, Callable[[list[Sandbox]], None]] = {
    "python-numpy": python_numpy, "nodejs": nodejs, "postgres-fixture": postgres_fixture, "coding-agent": coding_agent,
    "java-jvm": java_jvm, "jupyter-kernel": jupyter_kernel, "playwright-browser": playwright_browser,
    "torch-cpu": torch_cpu, "agent-workbench": agent_workbench,
}


# FIRST is what a fork is asked first, where forks are timed: Python after "=", else a command.
FIRST = {
    "python-numpy": "=numpy.zeros(5).tolist()", "nodejs": "node -p 1+1", "coding-agent": "git --version",
    "postgres-fixture": "psql -qAtU postgres test -c 'SELECT count(*) FROM items'",
    "java-jvm": "curl -fs http://127.0.0.1:8080/", "jupyter-kernel": "=pd.Series([1, 2]).sum()",
    "playwright-browser": "curl -fs http://127.0.0.1:9222/json/version",
    "torch-cpu": "=net(torch.tensor([[1.5]])).item()", "agent-workbench": "curl -fs http://127.0.0.1:8888/api/kernels",
}


def first(name: str, sandbox: Sandbox) -> None:
    """Asks a fork what FIRST has for its recipe."""
    if FIRST[name].startswith("="):
        sandbox.eval(FIRST[name][1:])
    else:
        run(sandbox, FIRST[name])


def build(name: str, tag: str) -> float:
    """Builds a recipe, without steps of earlier builds, and returns the seconds of its boot and warm-up.

    It returns 0 if the parent did not boot, because a snapshot of another build has the same boot.
    """
    folder = os.path.join(ROOT, "recipes", name)
    with tempfile.TemporaryDirectory() as scratch:
        roots = os.environ.get("PIP_CERT", "")
        with open(os.path.join(folder, "recipe.yaml")) as f:
            recipe = f.read()
        if roots and "pip install" in recipe:
            folder = os.path.join(scratch, name)
            shutil.copytree(os.path.join(ROOT, "recipes", name), folder)
            shutil.copy(roots, os.path.join(folder, "roots.pem"))
            recipe = recipe.replace("pip install ", "PIP_CERT=/root/roots.pem pip install ")
            recipe = recipe.replace("network: public", "network: open")
            file = "  - {source: roots.pem, target: /root/roots.pem}\n"
            recipe = recipe.replace("files:\n", "files:\n" + file) if "files:\n" in recipe else recipe + "files:\n" + file
            with open(os.path.join(folder, "recipe.yaml"), "w") as f:
                f.write(recipe)
        said = subprocess.run(["forkd", "build", folder, "--tag", tag, "--no-cache", "--ready-timeout-secs", "1200"],
                              check=True, stdout=subprocess.PIPE, text=True).stdout
        print(said, end="", flush=True)
        times = re.search(r"boot ([\d.]+) s, warm-up ([\d.]+) s", said)
        want(times is not None, f"forkd build does not say how long the boot took: {said}")
        boot, warm_up = map(float, times.groups())
        return boot and boot + warm_up


def prove(name: str, promises: Callable[[list[Sandbox]], None]) -> str:
    """Builds a recipe, lets three forks show that it keeps its promises, and returns the durations."""
    tag, began = f"recipe-{name}", time.monotonic()
    cold = build(name, tag)
    built = time.monotonic()
    try:
        with Sandbox.create(tag) as idler:
            time.sleep(10)
            # Linux counts a page of a snapshot as private while only one fork maps it; a cgroup does not.
            usage = idler.stats().usage
            want(usage is not None and usage.own_memory_bytes > 0, "the sandbox has no cgroup")
            idle = usage.own_memory_bytes
        answered = []
        for _ in range(3):
            forked = time.monotonic()
            with Sandbox.create(tag) as child:
                first(name, child)
                answered.append(time.monotonic() - forked)
        forked = time.monotonic()
        kids = [Sandbox.create(tag) for _ in range(3)]
        try:
            ready = time.monotonic()
            promises(kids)
        finally:
            for kid in kids:
                kid.kill()
    finally:
        subprocess.run(["forkd", "rmi", "--cascade", tag], check=True, stdout=subprocess.DEVNULL)
    return (f"{name}: built in {built - began:.0f} s, three forks in {ready - forked:.1f} s, all promises seen in "
            f"{time.monotonic() - ready:.1f} s; first answer {f'from a boot {cold:.1f} s, ' if cold else ''}of a fork "
            f"{sorted(answered)[1]:.2f} s; an idle fork has {idle / 2**20:.1f} MiB of its own")


chosen = os.environ.get("RECIPES", "").split() or list(CASES)
if unknown := set(chosen) - set(CASES):
    raise SystemExit(f"RECIPES: {', '.join(sorted(unknown))}: want names of {', '.join(CASES)}")
for name in chosen:
    line = report.case(name, lambda: prove(name, CASES[name]))
    print(line or f"{name}: no figures", flush=True)
report.finish()
