"""Runs the scenarios of test/contract with both halves of the SDK. test/contract/README.md describes them."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import keyword
import os
import re
import shutil
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import forkd
from forkd import types
from forkd._record import Record

CONTRACT = Path(__file__).resolve().parent.parent.parent.parent / "test/contract"


def scenarios() -> list[dict[str, Any]]:
    """All scenarios, in the order of their files."""
    return [s for file in sorted((CONTRACT / "scenarios").glob("*.yaml")) for s in yaml.safe_load(file.read_text())]


class Step(Exception):
    """A step did not have the result that the scenario expects."""


# The keys that a step may have, and the tests that may replace an expected value.
KEYS = {"do", "of", "with", "save", "expect", "error"}
CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "matches": lambda got, want: re.search(want, got if isinstance(got, str) else number_text(got)) is not None,
    "type": lambda got, want: type_of(got) == want,
    "length": lambda got, want: len(got) == want,
    "contains": lambda got, want: want in got,
    "not": lambda got, want: not holds(got, want),
    "base64": lambda got, want: got == base64.b64decode(want),
}


def number_text(value: Any) -> str:
    return str(value) if isinstance(value, (int, float)) else ""


def type_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (str, "string"), ((int, float), "number"), (list, "list"), (bytes, "bytes")):
        if isinstance(value, kind):  # type: ignore[arg-type]  # a type, or a tuple of types
            return name
    return "null" if value is None else "object"


def plain(value: Any) -> Any:
    """A value in the form of JSON, for comparisons."""
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def holds(got: Any, want: Any) -> bool:
    if isinstance(want, dict) and len(want) == 1 and next(iter(want)) in CHECKS:
        ((check, value),) = want.items()
        return CHECKS[check](plain(got), value)
    return bool(plain(got) == want)


def at(value: Any, path: str) -> Any:
    """The value at a path; None if there is none."""
    for part in [] if path == "." else path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, (list, tuple)):
            index = int(part)
            value = value[index] if -len(value) <= index < len(value) else None
        else:
            value = getattr(value, part + "_" if keyword.iskeyword(part) else part, None)
    return value


class Runner:
    """Runs one scenario, through the sync half or the async one."""

    def __init__(self, daemon: Any, half: str) -> None:
        self.daemon, self.half = daemon, half
        self.loop = asyncio.Runner() if half == "async" else None
        self.kind = (
            (lambda name: getattr(forkd, "Async" + name)) if half == "async" else (lambda name: getattr(forkd, name))
        )
        self.client = self.kind("Client")(daemon.url, token=daemon.token, retries=3)
        self.made: list[Path] = []
        run = "run" + uuid.uuid4().hex[:12]
        self.saved: dict[str, Any] = {
            "snapshot": daemon.snapshot, "tmp": f"{daemon.tmp}/{run}", "run": run, "url": daemon.url,
            "token": daemon.token, "file": daemon.file,
        }  # fmt: skip

    def directory(self, files: dict[str, Any]) -> str:
        """A directory of this host, which is removed after the scenario."""
        made = Path(tempfile.mkdtemp(prefix="forkd-contract"))
        self.made.append(made)
        for name, content in files.items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, dict):
                path.symlink_to(content["link"]) if "link" in content else os.mkfifo(path)
            else:
                path.write_bytes(data_of(content))
        return str(made)

    def close(self) -> None:
        for made in self.made:
            shutil.rmtree(made)
        self.wait(self.client.aclose() if self.half == "async" else self.client.close())
        if self.loop is not None:
            self.loop.close()

    def wait(self, value: Any) -> Any:
        """The result of a call of either half."""
        if inspect.isawaitable(value):

            async def result() -> Any:
                return await value

            assert self.loop is not None
            return self.loop.run(result())
        return value

    def enter(self, manager: Any) -> Opened:
        value = self.wait(manager.__aenter__()) if self.half == "async" else manager.__enter__()
        return Opened(manager, value)

    def leave(self, opened: Opened) -> None:
        if self.half == "async":
            self.wait(opened.manager.__aexit__(None, None, None))
        else:
            opened.manager.__exit__(None, None, None)

    def next(self, opened: Opened, wanted: dict[str, Any]) -> Any:
        """The next member of a stream that has the wanted fields."""
        while True:
            item = self.wait(anext(opened.value)) if self.half == "async" else next(opened.value)
            if all(getattr(item, k) == v for k, v in wanted.items()):
                return item

    def lines(self, lines: Any) -> str:
        async def all_of() -> list[str]:
            return [line async for line in lines]

        return "".join(line + "\n" for line in (self.wait(all_of()) if self.half == "async" else lines))

    def run(self, scenario: dict[str, Any]) -> None:
        assert set(scenario) <= {"name", "needs", "steps", "finally"}, scenario
        try:
            for i, step in enumerate(scenario["steps"], 1):
                try:
                    self.step(step)
                except Exception as e:
                    raise Step(f"step {i}, {step['do']}: {type(e).__name__}: {e}") from e
        finally:
            for step in scenario.get("finally", []):
                try:
                    self.step(step)
                except Exception:
                    continue  # it does not matter how the stream ends
            self.close()

    def step(self, step: dict[str, Any]) -> None:
        assert set(step) <= KEYS, f"keys of {step}"
        with_ = self.filled(step.get("with", {}))
        of = self.filled(step["of"]) if "of" in step else None
        expect = step.get("expect", {})
        try:
            result = self.do(step["do"], of, with_)
        except (forkd.ForkdError, RuntimeError) as e:
            if "error" not in step:
                raise
            result, expect = e, step["error"]
            if "class" in expect and type(e).__name__ != expect["class"]:
                raise Step(f"{type(e).__name__} instead of {expect['class']}: {e}") from e
            expect = {k: v for k, v in expect.items() if k != "class"}
        else:
            if "error" in step:
                raise Step(f"did not fail: {result!r}")
        if "save" in step:
            self.saved[step["save"]] = result
        for path, want in expect.items():
            if not holds(got := at(result, path), self.filled(want)):
                raise Step(f"{path} is {plain(got)!r:.500}, want {want!r:.500}; of {plain(result)!r:.2000}")

    def filled(self, value: Any) -> Any:
        """A value in which variables are replaced and bytes are decoded."""
        if isinstance(value, dict):
            if set(value) == {"base64"} and isinstance(value["base64"], str):
                return base64.b64decode(value["base64"])
            return {k: v if k in CHECKS and k != "not" else self.filled(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.filled(v) for v in value]
        if isinstance(value, str):
            if whole := re.fullmatch(r"\$\{([^}]+)\}", value):
                return self.variable(whole[1])
            return re.sub(r"\$\{([^}]+)\}", lambda m: str(self.variable(m[1])), value)
        return value

    def variable(self, name: str) -> Any:
        first, _, rest = name.partition(".")
        if first not in self.saved:
            raise Step(f"nothing was saved as {first}")
        return at(self.saved[first], rest or ".")

    def do(self, op: str, of: Any, with_: dict[str, Any]) -> Any:
        if op in OWN:
            return OWN[op](self, with_)
        if op not in OPERATIONS:
            raise Step(f"the runner does not know {op}")
        return OPERATIONS[op][1](self, of, dict(with_))


class Opened:
    """The value of a with block."""

    def __init__(self, manager: Any, value: Any) -> None:
        self.manager, self.value = manager, value


def rig(runner: Runner, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{runner.daemon.url}/_rig/{path}", data=data), timeout=60
    ) as answer:
        return json.loads(answer.read() or b"null")


OWN: dict[str, Callable[[Runner, dict[str, Any]], Any]] = {
    "rig.faults": lambda r, w: rig(r, "faults", w),
    "rig.state": lambda r, w: rig(r, "state"),
    "number": lambda r, w: int(w["text"]),
    "directory": lambda r, w: r.directory(w["files"]),
    "sleep": lambda r, w: time.sleep(w["seconds"]),
}


def method(path: str) -> Callable[[Runner, Any, dict[str, Any]], Any]:
    """A method of the object, or of its client, such as "commands.list"."""

    def call(r: Runner, of: Any, with_: dict[str, Any]) -> Any:
        target = of if of is not None else r.client
        for name in path.split("."):
            target = getattr(target, name)
        return r.wait(target(**with_))

    return call


def of_class(name: str) -> Callable[[Runner, Any, dict[str, Any]], Any]:
    return lambda r, of, w: r.wait(getattr(r.kind("Sandbox"), name)(**w, client=of or r.client))


def context(path: str) -> Callable[[Runner, Any, dict[str, Any]], Any]:
    def call(r: Runner, of: Any, with_: dict[str, Any]) -> Any:
        target = of if of is not None else r.client
        for name in path.split("."):
            target = getattr(target, name)
        return r.enter(target(**with_))

    return call


def result_of(result: Any, seen: dict[str, Any] | None = None) -> dict[str, Any]:
    """A command's result in the form of scenarios: text, and bytes."""
    names = ("exit_code", "outcome", "signal", "timed_out", "truncated", "ok", "error", "stdout_bytes", "stderr_bytes")
    out = {name: getattr(result, name) for name in names}
    out |= {n: result_text(getattr(result, n)) for n in ("stdout", "stderr")}
    return out | {"seen": seen}


def result_text(output: str | bytes) -> str:
    return output if isinstance(output, str) else output.decode("utf-8", "surrogateescape")


def run(r: Runner, of: Any, with_: dict[str, Any]) -> Any:
    seen = {"stdout": "", "stderr": ""}

    def add(name: str) -> Callable[[str], None]:
        return lambda part: seen.update({name: seen[name] + part})

    result = r.wait(of.commands.run(**with_, on_stdout=add("stdout"), on_stderr=add("stderr")))
    return result_of(result, seen)


def build(r: Runner, of: Any, with_: dict[str, Any]) -> Any:
    steps, states, output = list[str](), list[str | None](), list[str]()

    def tell(event: Any) -> None:
        if isinstance(event, types.BuildPlan):
            steps.extend(event.steps)
            states.extend([None] * len(steps))
        elif isinstance(event, types.BuildStep):
            states[event.number] = event.state
        else:
            output.append(event.line + "\n")

    snapshot = r.wait((of or r.client).build(**with_, on_progress=tell))
    seen = {"steps": steps, "states": states, "output": "".join(output)}
    return {"snapshot": snapshot, "cached": snapshot.built.cached, "run": snapshot.built.run, "seen": seen}


def run_code(r: Runner, of: Any, with_: dict[str, Any]) -> Any:
    seen: dict[str, Any] = {"stdout": "", "stderr": "", "results": 0}
    got = r.wait(
        of.run_code(
            **with_,
            on_stdout=lambda part: seen.update(stdout=seen["stdout"] + part),
            on_stderr=lambda part: seen.update(stderr=seen["stderr"] + part),
            on_result=lambda _: seen.update(results=seen["results"] + 1),
        )
    )
    names = ("text", "results", "stdout", "stderr", "error", "execution_count", "outcome", "state_lost")
    return {name: getattr(got, name) for name in names} | {"seen": seen}


def branch(r: Runner, of: Any, with_: dict[str, Any]) -> Any:
    snapshot, sandboxes = r.wait(of.branch(**with_))
    return {"snapshot": snapshot, "sandboxes": sandboxes}


def best_of(r: Runner, of: Any, with_: dict[str, Any]) -> Any:
    def judge(sandbox: Any, result: Any) -> float | None:
        return float(result.stdout) if result.ok else None

    return r.wait((forkd.async_best_of if r.half == "async" else forkd.best_of)(of, with_["attempts"], judge))


def read_all(r: Runner, of: Opened, with_: dict[str, Any]) -> bytes:
    out = b""
    while part := r.wait(of.value.receive(timeout=60)):
        out += part
    return out


def process(name: str) -> Callable[[Runner, Any, dict[str, Any]], Any]:
    def call(r: Runner, of: Any, with_: dict[str, Any]) -> Any:
        result = r.wait(getattr(of, name)(**with_))
        return result_of(result) if name == "wait" else result

    return call


def workspace(r: Runner, of: Any, with_: dict[str, Any], name: str) -> Any:
    def view(w: Any) -> Any:
        return {"name": w.name, "status": w.status, "live_sandbox_id": w.details.live_sandbox_id}

    got = r.wait(getattr(r.client.workspaces, name)(**with_))
    return [view(w) for w in got] if isinstance(got, list) else got if isinstance(got, bool) else view(got)


# Each operation as users write it, and as the runner calls it.
OPERATIONS: dict[str, tuple[str, Callable[[Runner, Any, dict[str, Any]], Any]]] = {
    "client.new": ("Client", lambda r, of, w: r.kind("Client")(**w)),
    "client.version": ("client.version", method("version")),
    "client.host_metrics": ("client.host_metrics", method("host_metrics")),
    "client.healthy": ("client.healthy", method("healthy")),
    "client.close": ("client.close", lambda r, of, w: r.wait(of.aclose() if r.half == "async" else of.close())),
    "client.build": ("client.build, Snapshot.build", build),
    "client.fork": ("client.fork", method("fork")),
    "client.sandboxes": ("client.sandboxes", method("sandboxes")),
    "client.events": ("with client.events(…) as events", context("events")),
    "events.next": ("for event in events", lambda r, of, w: r.next(of, w)),
    "events.close": ("the end of the with block", lambda r, of, w: r.leave(of)),
    "sandbox.create": ("Sandbox.create", of_class("create")),
    "sandbox.connect": ("Sandbox.connect", of_class("connect")),
    "sandbox.list": ("Sandbox.list", of_class("list")),
    "sandbox.logs": ("for line in sandbox.logs(…)", lambda r, of, w: r.lines(of.logs(**w))),
    "sandbox.branch": ("sandbox.branch", branch),
    "sandbox.run_code": ("sandbox.run_code", run_code),
    "sandbox.connect_port": ("with sandbox.connect_port(…) as connection", context("connect_port")),
    "connection.write": ("connection.send", lambda r, of, w: r.wait(of.value.send(data_of(w["data"])))),
    "connection.close_write": ("connection.end", lambda r, of, w: r.wait(of.value.end())),
    "connection.read_all": ("connection.receive", read_all),
    "connection.close": ("the end of the with block", lambda r, of, w: r.leave(of)),
    "sandbox.commands.run": ("sandbox.commands.run", run),
    "command.wait": ("handle.wait", process("wait")),
    "command.write": ("handle.write", process("write")),
    "command.close_stdin": ("handle.close_stdin", process("close_stdin")),
    "command.signal": ("handle.signal", process("signal")),
    "command.kill": ("handle.kill", process("kill")),
    "command.resize": ("handle.resize", process("resize")),
    "command.detach": ("handle.detach", process("detach")),
    "sandbox.files.watch": ("with sandbox.files.watch(…) as changes", context("files.watch")),
    "watch.next": ("for change in changes", lambda r, of, w: r.next(of, w)),
    "watch.close": ("the end of the with block", lambda r, of, w: r.leave(of)),
    "snapshot.fork": ("snapshot.fork", method("fork")),
    "best_of": ("best_of", best_of),
}
for name in (
    "info",
    "stats",
    "metrics",
    "ping",
    "kill",
    "set_labels",
    "set_ttl",
    "fork",
    "rollback",
    "promote",
    "apply",
    "try_all",
    "diff",
    "export",
    "pause",
    "resume",
    "suspend",
    "console",
    "url",
):
    OPERATIONS[f"sandbox.{name}"] = (f"sandbox.{name}", method(name))
for name in ("contexts.create", "contexts.list", "contexts.restart", "contexts.interrupt", "contexts.remove",
             "commands.start", "commands.connect", "commands.list", "commands.signal", "commands.kill",
             "commands.send_stdin",
             "pty.create", "files.read", "files.read_bytes", "files.write", "files.list", "files.stat", "files.exists",
             "files.make_dir", "files.rename", "files.remove", "files.read_tree", "files.write_tree",
             "network.get", "network.set", "limits.get", "limits.set",
             "hooks.get", "hooks.set"):  # fmt: skip
    OPERATIONS[f"sandbox.{name}"] = (f"sandbox.{name}", method(name))
for name in ("list", "get", "info", "delete", "verify", "compact", "bake"):
    OPERATIONS[f"snapshots.{name}"] = (f"client.snapshots.{name}", method(f"snapshots.{name}"))
for name in ("create", "list", "get", "suspend", "resume", "delete"):
    OPERATIONS[f"workspaces.{name}"] = (
        f"client.workspaces.{name}",
        lambda r, of, w, name=name: workspace(r, of, w, name),  # type: ignore[misc]  # name is bound at once
    )


def data_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def operations_json() -> str:
    """sdk/python/tests/operations.json: how a user writes every operation. docs/sdk.md is made from it."""
    known = [o["op"] for o in yaml.safe_load((CONTRACT / "operations.yaml").read_text())]
    order = {op: OPERATIONS[op][0] for op in known if op in OPERATIONS}
    return json.dumps(order, indent=2, ensure_ascii=False) + "\n"
