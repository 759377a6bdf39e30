"""The Python package forkd 0.5.3: all of Controller and of Sandbox. The group forkd-python-own runs the
same cases with the package of sdk/python."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from importlib.metadata import version

from report import TAG, NotApplicable, Report, recorded, want

VERSION = version("forkd")
OWN = VERSION != "0.5.3"  # the package of sdk/python, which has more methods
r = Report(f"forkd {VERSION} ({'sdk/python' if OWN else 'PyPI'})")
used: set[str] = set()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


# The package reads these variables when it is imported. Without them, it would connect to 10.42.0.2:8888, and
# Sandbox() would fork the snapshot pyagent.
os.environ["FORKD_TARGET"] = f"127.0.0.1:{free_port()}"
os.environ["FORKD_TAG"] = TAG

import forkd  # noqa: E402
from forkd import Controller, ControllerError, Sandbox  # noqa: E402

# The class of the result of Sandbox(…). In sdk/python it is a separate class.
controller_methods, sandbox_methods = recorded(Controller, used), recorded(type(Sandbox(spawn=False)), used)
c = Controller()
SANDBOX = {"id": str, "snapshot_tag": str, "guest_addr": str, "created_at_unix": int, "has_branched": bool, "branch_count": int}
SNAPSHOT = {"tag": str, "dir": str, "created_at_unix": int, "status": str, "bootable": bool}


def has(record: dict, fields: dict) -> dict:
    for name, kind in fields.items():
        want(isinstance(record.get(name), kind), f"{name} of {record}")
    return record


def refused(status: int, call) -> None:
    try:
        call()
    except ControllerError as e:
        want(e.status == status, e)
        want(isinstance(e.body, dict) and isinstance(e.body.get("error"), str), f"the body of {e}")
        return
    raise AssertionError(f"was taken, want {status}")


def ready(tag: str) -> dict:
    deadline = time.monotonic() + 120
    while True:
        s = next(s for s in c.list_snapshots() if s["tag"] == tag)
        if s["status"] == "ready":
            return s
        want(s["status"] == "writing" and time.monotonic() < deadline, s)
        time.sleep(0.1)


def spawn(tag: str = TAG, **options) -> dict:
    return has(c.spawn_sandboxes(tag, **options)[0], SANDBOX)


def spawn_all_options() -> dict:
    made = c.spawn_sandboxes(TAG, n=2, per_child_netns=True, memory_limit_mib=400, prewarm=True, live_fork=True, hugepages=True)
    want(len(made) == 2 and all(s["memory_limit_mib"] == 400 for s in made), made)
    c.kill_sandbox(made[1]["id"])
    return has(made[0], SANDBOX)


def branch(**options) -> dict:
    info = has(c.branch_sandbox(source, **options), SNAPSHOT)
    want(info["branched_from"], info)
    if options.get("wait", True):
        want(info["status"] == "ready" and info["bootable"] and info["pause_ms"] >= 0, info)
    return info


def unwaited(mode: str) -> None:
    """A branch that was not waited for can be forked from at once, because the fork waits for it."""
    tag = f"compat-unwaited-{mode}"
    c.exec_command(source, ["sh", "-c", f"echo {tag} >/root/mark"])
    branch(tag=tag, mode=mode, wait=False)
    child = spawn(tag)
    got = c.exec_command(child["id"], ["cat", "/root/mark"])
    want(got["stdout"] == tag + "\n", got)
    ready(tag)
    c.kill_sandbox(child["id"])
    c.delete_snapshot(tag)


def deleted(tag: str) -> None:
    c.delete_snapshot(tag)
    want(tag not in [s["tag"] for s in c.list_snapshots()], "still listed")


def ran(args: list, want_code: int, want_out: str) -> None:
    got = c.exec_command(source, args, timeout_secs=60)
    want(got["exit_code"] == want_code and got["stdout"] == want_out and isinstance(got["stderr"], str), got)


def evaluated() -> None:
    got = c.eval_code(source, "__import__('numpy').zeros(3).tolist()")
    want(got["result"] == "[0.0, 0.0, 0.0]" and got["exit_code"] == 0, got)
    got = c.eval_code(source, "1/0")
    want("ZeroDivisionError" in got["error"] and got["exit_code"] == 1, got)


def killed() -> None:
    c.kill_sandbox(source)
    refused(404, lambda: c.get_sandbox(source))


r.case("Controller.list_snapshots", lambda: [has(s, SNAPSHOT) for s in c.list_snapshots()])
source = (r.case("Controller.spawn_sandboxes, every option", spawn_all_options) or spawn())["id"]
r.case("Controller.list_sandboxes", lambda: want(source in [has(s, SANDBOX)["id"] for s in c.list_sandboxes()], "not listed"))
r.case("Controller.get_sandbox", lambda: has(c.get_sandbox(source), SANDBOX))
r.case("Controller.ping_sandbox", lambda: want(c.ping_sandbox(source)["pong"] is True, "no pong"))
r.case("Controller.exec_command", lambda: ran(["echo", "hi"], 0, "hi\n"))
r.case("Controller.exec_command, a status", lambda: ran(["sh", "-c", "exit 7"], 7, ""))
r.case("Controller.eval_code", evaluated)
r.case("Controller.branch_sandbox", lambda: deleted(branch()["tag"]))
r.case("Controller.branch_sandbox, diff=True", lambda: deleted(branch(diff=True, tag="compat-diff")["tag"]))
r.case("Controller.branch_sandbox, measure_diff=True", lambda: deleted(branch(measure_diff=True, tag="compat-measure")["tag"]))
for m in ("full", "diff", "live"):
    r.case(f"Controller.branch_sandbox, mode={m}", lambda: deleted(branch(mode=m, tag=f"compat-{m}")["tag"]))
    r.case(f"Controller.branch_sandbox, mode={m}, wait=False, spawned from at once", lambda: unwaited(m))
r.case("Controller.branch_sandbox, mode beside a boolean", lambda: refused(400, lambda: c._request(
    "POST", f"/v1/sandboxes/{source}/branch", {"mode": "full", "diff": True})))
r.case("Controller.branch_sandbox, a tag that is taken", lambda: refused(409, lambda: c.branch_sandbox(source, tag=TAG)))
r.case("Controller.delete_snapshot, unknown", lambda: refused(404, lambda: c.delete_snapshot("compat-none")))
r.case("Controller.spawn_sandboxes, unknown", lambda: refused(404, lambda: c.spawn_sandboxes("compat-none")))
r.case("Controller.spawn_sandboxes, n out of range", lambda: refused(400, lambda: c.spawn_sandboxes(TAG, n=0)))
r.case("Controller, a wrong token", lambda: refused(401, Controller(token="wrong-" * 4).list_sandboxes))
r.case("Controller.kill_sandbox", killed)
r.covered("method of Controller", controller_methods, used)

# The class Sandbox runs `forkd fork` of $PATH and speaks the old agent's protocol to $FORKD_TARGET.
used.clear()


def in_sandbox(run) -> None:
    before = {s["id"] for s in c.list_sandboxes()}
    with Sandbox(TAG) as sb:
        run(sb)
    deadline = time.monotonic() + 60
    while {s["id"] for s in c.list_sandboxes()} - before:
        want(time.monotonic() < deadline, "its VM is left")
        time.sleep(0.1)


def commands(sb: Sandbox) -> None:
    got = sb.commands.run("echo out; echo err >&2; exit 3")
    want((got.stdout, got.stderr, got.exit_code) == ("out\n", "err\n", 3), got)
    got = sb.commands.run(["echo", "a b", "$HOME"])
    want((got.stdout, got.exit_code) == ("a b $HOME\n", 0), got)
    got = sb.commands.run("echo long; exec sleep 1000", timeout=2)
    want(got.exit_code == 1 and "2" in got.stderr, got)


def evals(sb: Sandbox) -> None:
    want(sb.eval("1 + 1") == "2", "1 + 1")
    want(sb.eval("__import__('numpy').ones(2).tolist()") == "[1.0, 1.0]", "numpy")
    try:
        sb.eval("nothing_of_that_name")
    except RuntimeError as e:
        want("NameError" in str(e), e)
    else:
        raise AssertionError("no error")


def pings(sb: Sandbox) -> None:
    got = sb.ping()
    want(got["pong"] is True and "numpy_version" in got and got["agent_lang"] == "python", got)


def created() -> None:
    sb = Sandbox.create(tag=TAG)
    try:
        second = Sandbox(spawn=False)  # another object for the same sandbox
        want(second.ping()["pong"] is True, "no pong")
    finally:
        sb.kill()


@contextlib.contextmanager
def forwarded(port: str):
    """Runs `forkd forward-guests` while the block runs."""
    forward = subprocess.Popen(["forkd", "forward-guests", "--port", port], stderr=subprocess.PIPE, text=True)
    try:
        said = forward.stderr.readline()
        want("guest_addr" in said, said)
        yield
    finally:
        forward.terminate()
        forward.wait()


def by_address() -> None:
    """Uses children at the addresses that the Controller returns, which 0.5 supported for one child at a time."""
    children = c.spawn_sandboxes(TAG, n=2)
    try:
        addresses = [child["guest_addr"] for child in children]
        if not all(addresses):
            raise NotApplicable("the daemon was started without --guest-port")
        with forwarded(addresses[0].split(":")[1]):
            for child in children:
                sb = Sandbox(target=child["guest_addr"], spawn=False)
                got = sb.commands.run("hostname")
                want(got.stdout == child["hostname"] + "\n", got)
            want(sb.eval("1 + 1") == "2" and sb.ping()["pong"] is True, "the last child")
    finally:
        for child in children:
            c.kill_sandbox(child["id"])


# The lines that announced forkd 0.5, and the lines at the beginning of its README, unchanged.


def quick_start_of_sandbox() -> None:
    with Sandbox() as sb:
        want(sb.commands.run("uname -a").stdout.startswith("Linux "), "uname -a")
        want(sb.eval("numpy.zeros(5).tolist()") == "[0.0, 0.0, 0.0, 0.0, 0.0]", "numpy.zeros(5).tolist()")
        want(sb.eval("numpy.zeros(100).sum()") == "0.0", "numpy.zeros(100).sum()")
        want(sb.eval("np is numpy") == "True", "np is numpy")


def quick_start_of_controller() -> None:
    children = c.spawn_sandboxes(TAG, n=1, per_child_netns=True)
    sb_id = children[0]["id"]
    branch = c.branch_sandbox(sb_id, tag="compat-checkpoint-1")
    grandchildren = c.spawn_sandboxes(branch["tag"], n=5)  # speculative fan-out
    try:
        for child in grandchildren:
            got = c.eval_code(child["id"], "numpy.zeros(5).tolist()")
            want(got["exit_code"] == 0 and got["result"] == "[0.0, 0.0, 0.0, 0.0, 0.0]", got)
    finally:
        for child in children + grandchildren:
            c.kill_sandbox(child["id"])
        c.delete_snapshot(branch["tag"])


def lines_of_code_interpreters() -> None:
    with Sandbox(tag=TAG) as sb:
        want(sb.eval("numpy.linalg.eigvals([[1,2],[3,4]]).tolist()").startswith("[-0.3722"), "eigvals")
        got = sb.commands.run("python3 -c 'import pandas; print(pandas.__version__)'", timeout=300)
        if "No module named 'pandas'" in got.stderr:
            raise NotApplicable(f"{TAG} is of a recipe without pandas and scikit-learn")
        want(got.exit_code == 0 and got.stdout[0].isdigit(), got)
        want(sb.eval("sklearn.datasets.load_iris().data.shape") == "(150, 4)", "load_iris")


def unknown_tag() -> None:
    try:
        Sandbox("compat-none")
    except RuntimeError as e:
        want("compat-none" in str(e) and "exited with code" in str(e), e)
    else:
        raise AssertionError("no error")


r.case("Sandbox.commands.run", lambda: in_sandbox(commands))
r.case("Sandbox.eval", lambda: in_sandbox(evals))
r.case("Sandbox.ping", lambda: in_sandbox(pings))
r.case("Sandbox.create, Sandbox.kill, spawn=False", created)
r.case("Sandbox(target=guest_addr, spawn=False) of children", by_address)
r.case("Sandbox of an unknown tag", unknown_tag)
r.case("the quick start of 0.5: Sandbox", quick_start_of_sandbox)
r.case("the quick start of 0.5: Controller", quick_start_of_controller)
r.case("the lines of 0.5 for code interpreters: SciPy stack", lines_of_code_interpreters)
r.covered("method of Sandbox", sandbox_methods, used)
NAMES = {"Sandbox", "CommandResult", "Controller", "ControllerError", "BranchMode"}
want(NAMES <= set(forkd.__all__) if OWN else NAMES == set(forkd.__all__), forkd.__all__)
r.finish()
