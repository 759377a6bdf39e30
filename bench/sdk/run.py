"""What an SDK adds to the requests that it makes: the SDKs of this repository for Python, TypeScript and Go,
and E2B's for Python, each beside the same requests by a plain HTTP client, against one daemon in one run.

VMs are faked and agents are processes of this host, so that the daemon's own time is small and the
clients' is not lost in it. Clients take turns. After that each client holds N sandboxes in a process of its
own, which is asked how much it has grown. A table goes to standard output, the figures to $COMPAT_OUT.
Started by scripts/bench sdk; N is how many sandboxes at once (100), RUNS how many one after another (20).
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

ROOT = os.getcwd()
N, RUNS = int(os.environ.get("N", "100")), int(os.environ.get("RUNS", "20"))
FILE_MB = 100
LARGE = os.urandom(1 << 20) * FILE_MB
ROWS = ("create → first command", "first command again", 'run_code("1+1")', f"{FILE_MB} MB up", f"{FILE_MB} MB down")

scratch = tempfile.TemporaryDirectory()
binary = os.path.join(scratch.name, "rigd")
subprocess.run(["go", "build", "-o", binary, "./test/contract/rigd"], check=True)
daemon = subprocess.Popen([binary, "-checked=false"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
rig = json.loads(daemon.stdout.readline())
URL, TOKEN, TAG = rig["url"], rig["token"], rig["snapshot"]
os.environ.update(E2B_API_URL=URL, E2B_SANDBOX_URL=URL, E2B_API_KEY=TOKEN, E2B_VALIDATE_API_KEY="false",
                  FORKD_URL=URL, FORKD_TOKEN=TOKEN)

import e2b_code_interpreter as e2b  # noqa: E402
import forkd  # noqa: E402


class Plain:
    """The requests of an SDK, on one connection."""

    def __init__(self) -> None:
        self.path = f"{rig['tmp']}/large-{id(self)}"
        self.conn = http.client.HTTPConnection(urlsplit(URL).netloc, timeout=600)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        self.conn.request(method, path, body, {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json",
                                               **{k.replace("_", "-"): v for k, v in headers.items()}})
        resp = self.conn.getresponse()
        got = resp.read()
        if resp.status >= 300:
            raise RuntimeError(f"{method} {path}: {resp.status} {got[:200]!r}")
        return got


class PlainForkd(Plain):
    def create(self) -> None:
        made = self.ask("POST", "/v1/forks", json.dumps({"snapshot_tag": TAG}).encode())
        self.box = "/v1/sandboxes/" + json.loads(made)["sandboxes"][0]["id"]

    def command(self) -> None:
        args = json.dumps({"args": ["/bin/sh", "-c", "echo hi"]}).encode()
        assert b"hi" in self.ask("POST", self.box + "/exec", args, Accept="application/x-ndjson")

    def code(self) -> None:
        assert b'"2"' in self.ask("POST", self.box + "/code", b'{"code": "1+1"}')

    def up(self) -> None:
        self.ask("PUT", f"{self.box}/files?path={quote(self.path)}", LARGE)

    def down(self) -> None:
        assert len(self.ask("GET", f"{self.box}/files?path={quote(self.path)}")) == len(LARGE)

    def kill(self) -> None:
        self.ask("DELETE", self.box)


class PlainE2B(Plain):
    def create(self) -> None:
        self.box = json.loads(self.ask("POST", "/v2/sandboxes", json.dumps({"templateID": TAG}).encode(), X_API_KEY=TOKEN))

    def service(self, port: int, method: str, path: str, body: bytes, kind: str = "application/json") -> bytes:
        return self.ask(method, path, body, E2b_Sandbox_Id=self.box["sandboxID"], E2b_Sandbox_Port=str(port),
                        X_Access_Token=self.box["envdAccessToken"], Content_Type=kind)

    def command(self) -> None:
        start = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hi"]}, "stdin": False}).encode()
        frame = struct.pack(">BI", 0, len(start)) + start
        got = self.service(49983, "POST", "/process.Process/Start", frame, "application/connect+json")
        assert base64.b64encode(b"hi\n") in got

    def code(self) -> None:
        assert b'"2"' in self.service(49999, "POST", "/execute", b'{"code": "1+1"}')

    def up(self) -> None:
        edge = "----------sdk"
        head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{self.path}"\r\n\r\n'.encode()
        self.service(49983, "POST", f"/files?path={quote(self.path)}", head + LARGE + f"\r\n--{edge}--\r\n".encode(),
                     "multipart/form-data; boundary=" + edge)

    def down(self) -> None:
        assert len(self.service(49983, "GET", f"/files?path={quote(self.path)}", b"")) == len(LARGE)

    def kill(self) -> None:
        self.ask("DELETE", "/sandboxes/" + self.box["sandboxID"], X_API_KEY=TOKEN)


class Forkd:
    def create(self) -> None:
        self.box = forkd.Sandbox.create(TAG)
        self.path = f"{rig['tmp']}/large-{id(self)}"

    def command(self) -> None:
        assert self.box.commands.run("echo hi").stdout == "hi\n"

    def code(self) -> None:
        assert self.box.run_code("1+1").text == "2"

    def up(self) -> None:
        self.box.files.write(self.path, LARGE)

    def down(self) -> None:
        assert len(self.box.files.read_bytes(self.path)) == len(LARGE)

    def kill(self) -> None:
        self.box.kill()


class E2B(Forkd):
    def create(self) -> None:
        self.box = e2b.Sandbox.create(TAG)
        self.path = f"{rig['tmp']}/large-{id(self)}"

    def down(self) -> None:
        assert len(self.box.files.read(self.path, format="bytes")) == len(LARGE)


class Program:
    """An SDK of another language: a process that does the work of each line of its input, and answers a number."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen([*command, TAG, f"{rig['tmp']}/large-{id(self)}"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def tell(self, work: str) -> float:
        print(work, file=self.process.stdin, flush=True)
        said = self.process.stdout.readline()
        if not said:
            raise RuntimeError(f"{self.process.args}: it ended at {work}")
        return float(said)

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)  # it has killed its sandboxes


def started(name: str) -> Program:
    return Program(*PROGRAMS[name])


go_client = os.path.join(scratch.name, "client")
subprocess.run(["go", "build", "-o", go_client, "./bench/sdk/client"], check=True)
PROGRAMS = {
    "typescript": (os.path.join(os.path.dirname(sys.executable), "node"), "--no-warnings", "bench/sdk/client.mjs"),
    "go": (go_client,),
}


def took(f: Callable[[], Any]) -> float:
    began = time.perf_counter()
    f()
    return time.perf_counter() - began


KINDS: dict[str, Callable[[], Any]] = {"http": PlainForkd, "python": Forkd, "http-e2b": PlainE2B, "e2b": E2B}
times: dict[str, dict[str, list[float]]] = {row: {k: [] for k in (*KINDS, *PROGRAMS)} for row in ROWS}
programs = {name: started(name) for name in PROGRAMS}
for run in range(RUNS + 1):  # the first one finds cold caches
    def note(row: str, kind: str, seconds: float) -> None:
        if run > 0:
            times[row][kind].append(seconds)

    for kind, make in KINDS.items():
        client = make()
        note(ROWS[0], kind, took(lambda: (client.create(), client.command())))
        note(ROWS[1], kind, took(client.command))
        client.code()  # starts the interpreter
        note(ROWS[2], kind, took(client.code))
        if run <= max(3, RUNS // 4):
            note(ROWS[3], kind, took(client.up))
            note(ROWS[4], kind, took(client.down))
            os.remove(client.path)
        client.kill()
    for name, program in programs.items():
        for row, work in zip(ROWS, ("create", "command", "code", "up", "down")):
            if work in ("up", "down") and run > max(3, RUNS // 4):
                continue
            note(row, name, program.tell(work))
        program.tell("kill")

wall: dict[str, float] = {}
for kind, make in KINDS.items():
    def one(_: int) -> Any:
        client = make()
        client.create()
        client.command()
        return client

    with ThreadPoolExecutor(N) as pool:
        began = time.perf_counter()
        made = list(pool.map(one, range(N)))
        wall[kind] = time.perf_counter() - began
        list(pool.map(lambda c: c.kill(), made))
for name, program in programs.items():
    wall[name] = program.tell(f"many {N}")
    program.end()

held: dict[str, float] = {}
for kind, name in (("python", "forkd"), ("e2b", "e2b")):
    said = subprocess.run([sys.executable, "bench/sdk/held.py", name, TAG, str(N)], check=True, capture_output=True)
    held[kind] = float(said.stdout)
for name in PROGRAMS:
    program = started(name)
    held[name] = program.tell(f"held {N}")
    program.end()

print(f"What SDKs add to their own requests, p50 in ms; {RUNS} in turn, {N} at once; {os.cpu_count()} CPUs; VMs are faked\n")
print("| what | /v1 by HTTP | Python adds | TypeScript adds | Go adds | E2B's API by HTTP | E2B's SDK adds | Python : E2B |")
print("| --- |" + " ---: |" * 7)
figures = []
ms = lambda row, kind: 1000 * statistics.median(times[row][kind])  # noqa: E731
for row in ROWS:
    cells = {kind: ms(row, kind) for kind in (*KINDS, *PROGRAMS)}
    figures.append({"what": row, **{k: {"p50_ms": round(v, 2), "count": len(times[row][k])} for k, v in cells.items()}})
figures.append({"what": f"create → first command, {N} at once", **{k: {"p50_ms": round(1000 * v, 1), "count": 1} for k, v in wall.items()}})
for f in figures:
    c = {k: v["p50_ms"] for k, v in f.items() if k != "what"}
    ours, theirs = c["python"] - c["http"], c["e2b"] - c["http-e2b"]
    ratio = f"{ours / theirs:.2f}" if theirs > 0 and ours > 0 else ""
    print(f"| {f['what']} | {c['http']:.1f} | {ours:.1f} | {c['typescript'] - c['http']:.1f} | {c['go'] - c['http']:.1f} | {c['http-e2b']:.1f} | {theirs:.1f} | {ratio} |")
print(f"\nMemory that a process takes for each of {N} sandboxes that it holds, KiB: Python {held['python']:.0f}, "
      f"TypeScript {held['typescript']:.0f}, Go {held['go']:.0f}, E2B's SDK for Python {held['e2b']:.0f}")
with open(os.environ["COMPAT_OUT"], "w") as out:
    json.dump({"runs": RUNS, "at_once": N, "rows": figures, "held_kib": held}, out, indent=1)
daemon.stdin.close()
daemon.wait(60)
