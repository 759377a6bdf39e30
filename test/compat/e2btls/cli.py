"""The cases of E2B's command line. run.py starts this program and reads a line of JSON for each case."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tempfile

from cases import case, want

CLI = os.path.join(sys.prefix, "npm", "node_modules", ".bin", "e2b")


def e2b(*args: str, fails: str = "", stdin: str = "") -> str:
    """The output of a command. If fails is given, the command must fail with that text."""
    r = subprocess.run([CLI, *args], input=stdin, capture_output=True, text=True, timeout=300)
    want((r.returncode != 0) == bool(fails), f"{args}: status {r.returncode}: {r.stdout} {r.stderr}")
    want(fails in r.stdout + r.stderr, f"{args}: no {fails!r} in {r.stdout} {r.stderr}")
    return re.sub(r"\x1b\[[0-9;]*m", "", r.stdout).strip()


def ids(*args: str) -> set[str]:
    return {s["sandboxId"] if "sandboxId" in s else s["sandboxID"] for s in json.loads(e2b("sandbox", "list", "-f", "json", *args))}


made = ""


def create() -> None:
    global made
    made = e2b("sandbox", "create", "base", "-d", "--timeout", "600")
    with open("/etc/hosts", "a") as f:
        f.write(f"127.0.0.1 49983-{made}.{os.environ['E2B_DOMAIN'].split(':')[0]}\n")
    want(made in ids(), made)
    want(made in e2b("sandbox", "list"), made)
    info = json.loads(e2b("sandbox", "info", made, "-f", "json"))
    want(info["state"] == "running", info)
    e2b("sandbox", "create", "no-such-template", "-d", fails="404")
    e2b("sandbox", "info", "sb-none", fails="wasn't found")


def commands() -> None:
    want((got := e2b("sandbox", "exec", made, "echo", "hello")) == "hello", got)
    want((got := e2b("sandbox", "exec", "-e", "A=b", "-c", "/tmp", made, "echo $A; pwd")) == "b\n/tmp", got)
    want((got := e2b("sandbox", "exec", made, "cat", stdin="piped")) == "piped", got)
    r = subprocess.run([CLI, "sandbox", "exec", made, "exit 7"], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    want(r.returncode == 7, r)


def terminal() -> None:
    out = b""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(CLI, [CLI, "sandbox", "connect", made])
    typed = False
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # the end of the terminal
            break
        if not part:
            break
        out += part
        if not typed and b"# " in out or not typed and b"$ " in out:
            os.write(master, b"echo sum-$((40+2)); exit\r")
            typed = True
    want(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and b"sum-42" in out, out)


def watching() -> None:
    logs = e2b("sandbox", "logs", made, "--format", "json")
    want("hello" in logs and json.loads(logs.splitlines()[-1])["timestamp"], logs)
    want("hello" in e2b("sandbox", "logs", made), "pretty")
    e2b("sandbox", "metrics", made)


def paused() -> None:
    e2b("sandbox", "pause", made)
    want(made not in ids() and made in ids("-s", "paused"), ids())
    e2b("sandbox", "resume", made)
    want(made in ids(), ids())


def snapshots() -> None:
    said = e2b("sandbox", "snapshot", "create", made)
    listed = e2b("sandbox", "snapshot", "list", made, "-f", "json")
    snapshot = json.loads(listed)[0]["snapshotId"]
    want(snapshot in said, (said, listed))
    e2b("sandbox", "snapshot", "delete", snapshot)
    want(json.loads(e2b("sandbox", "snapshot", "list", made, "-f", "json")) == [], "it is still there")


def templates() -> None:
    with tempfile.TemporaryDirectory() as there:
        with open(f"{there}/Dockerfile", "w") as f:
            f.write(f"FROM e2bdev/base\nENV HOME=/nonexistent\nUSER root\nCOPY Dockerfile {there}/app/\nRUN echo built by $((40+2))\n")
        want("built by 42" in (got := e2b("template", "create", "made-cli", "-p", there)), got)
    want("made-cli" in [t["templateID"] for t in json.loads(e2b("template", "list", "-f", "json"))], "list")
    want("made-cli" in e2b("template", "list"), "list")
    e2b("template", "publish", "made-cli", "-y", fails="forkd does not have this")
    e2b("template", "delete", "made-cli", "-y")
    e2b("template", "delete", "made-cli", "-y", fails="not found")


def killed() -> None:
    e2b("sandbox", "kill", made)
    want(made not in ids(), "it lives")
    other = e2b("sandbox", "create", "base", "-d")
    e2b("sandbox", "kill", "--all")
    want(other not in ids(), "it lives")


case("CLI: sandbox create, list, info", create)
case("CLI: sandbox exec", commands)
case("CLI: sandbox connect", terminal)
case("CLI: sandbox logs, metrics", watching)
case("CLI: sandbox pause, resume", paused)
case("CLI: sandbox snapshot", snapshots)
case("CLI: template create, list, delete", templates)
case("CLI: sandbox kill", killed)
