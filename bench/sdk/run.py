"""Measures what an SDK adds to the requests that it makes. The SDKs are those of this repository for
Python, TypeScript and Go, and E2B's for Python. Each is compared with the same requests by a plain HTTP
client, against one daemon in one run.

VMs are faked and agents are processes of this host, so that the daemon's own time is small and the
clients' is not lost in it. Clients take turns at every single piece of work. Beside its time, each
counts the CPU time that the client's process takes for it, which the daemon and other programs hardly touch. After
that each client holds N sandboxes in a process of its own, which is asked how much it has grown. Tables go to
standard output, the figures to $COMPAT_OUT. Started by scripts/bench sdk; N is how many sandboxes at once (100), RUNS
how many one after another (20); commands are run 5 times as often, code 25 times, and files are sent a quarter as often.
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
WORKS = {  # by kind of work: its name in the table, and how often it is done
    "create": ("create → first command", RUNS),
    "command": ("a command", 5 * RUNS),
    "code": ('run_code("1+1")', 25 * RUNS),
    "up": (f"{FILE_MB} MB up", max(3, RUNS // 4)),
    "down": (f"{FILE_MB} MB down", max(3, RUNS // 4)),
}

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


Cost = tuple[float, float]  # seconds that passed, and of the client's CPU time


def cost(work: Callable[..., Any], *args: Any) -> Cost:
    cpu, began = time.process_time(), time.perf_counter()
    work(*args)
    return time.perf_counter() - began, time.process_time() - cpu


def tell(client: Any, work: str) -> Cost:
    """Has a client of this process do a piece of work; create includes the first command."""
    if work == "create":
        return cost(lambda: (client.create(), client.command()))
    return cost(getattr(client, work))


class Plain:
    """The requests that an SDK makes, on one connection."""

    tell = tell

    def __init__(self) -> None:
        self.path = f"{rig['tmp']}/large-{id(self)}"
        self.conn = http.client.HTTPConnection(urlsplit(URL).netloc, timeout=600)

    def ask(self, method: str, path: str, body: bytes | list[bytes] = b"", **headers: str) -> bytes:
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

    def service(self, port: int, method: str, path: str, body: bytes | list[bytes], kind: str = "application/json") -> bytes:
        parts = [body] if isinstance(body, bytes) else body
        return self.ask(method, path, parts, Content_Length=str(sum(map(len, parts))), E2b_Sandbox_Id=self.box["sandboxID"], E2b_Sandbox_Port=str(port),
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
        self.service(49983, "POST", f"/files?path={quote(self.path)}", [head, LARGE, f"\r\n--{edge}--\r\n".encode()],
                     "multipart/form-data; boundary=" + edge)

    def down(self) -> None:
        assert len(self.service(49983, "GET", f"/files?path={quote(self.path)}", b"")) == len(LARGE)

    def kill(self) -> None:
        self.ask("DELETE", "/sandboxes/" + self.box["sandboxID"], X_API_KEY=TOKEN)


class Forkd:
    tell = tell

    def create(self) -> None:
        self.box = forkd.Sandbox.create(TAG)
        self.path = f"{rig['tmp']}/large-{id(self)}"

    def command(self) -> None:
        result = self.box.commands.run("echo hi")
        assert result.stdout == "hi\n", result

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
    """An SDK of another language: a process that does the work of each line of its input, and answers its cost."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen([*command, TAG, f"{rig['tmp']}/large-{id(self)}"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def tell(self, work: str) -> Cost:
        print(work, file=self.process.stdin, flush=True)
        said = self.process.stdout.readline()
        if not said:
            raise RuntimeError(f"{self.process.args}: it ended at {work}")
        return tuple(map(float, said.split()))

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)  # exits after it has killed its sandboxes


def started(name: str) -> Program:
    return Program(*PROGRAMS[name])


go_client = os.path.join(scratch.name, "client")
subprocess.run(["go", "build", "-o", go_client, "./bench/sdk/client"], check=True)
PROGRAMS = {
    "typescript": (os.path.join(os.path.dirname(sys.executable), "node"), "--no-warnings", "bench/sdk/client.mjs"),
    "go": (go_client,),
}


KINDS: dict[str, Callable[[], Any]] = {"http": PlainForkd, "python": Forkd, "http-e2b": PlainE2B, "e2b": E2B}
clients = {**{kind: make() for kind, make in KINDS.items()}, **{name: started(name) for name in PROGRAMS}}
costs: dict[str, dict[str, list[Cost]]] = {work: {kind: [] for kind in clients} for work in WORKS}
for work, (_, often) in WORKS.items():
    for run in range(often + 1):  # the first one finds cold caches
        for kind, client in clients.items():
            took = client.tell(work)
            if run > 0:
                costs[work][kind].append(took)
            if work == "create" and run < often:
                client.tell("kill")
for kind, client in clients.items():
    client.tell("kill")
    if kind in KINDS:
        os.remove(client.path)


def many(make: Callable[[], Any], made: list[Any]) -> None:
    def one(_: int) -> None:
        client = make()
        client.create()
        client.command()
        made.append(client)

    with ThreadPoolExecutor(N) as pool:
        list(pool.map(one, range(N)))


costs["many"] = {}
for kind, client in clients.items():
    made: list[Any] = []
    costs["many"][kind] = [client.tell(f"many {N}") if kind in PROGRAMS else cost(many, KINDS[kind], made)]
    for one in made:
        one.kill()
    if kind in PROGRAMS:
        client.end()

held: dict[str, float] = {}
for kind, name in (("python", "forkd"), ("e2b", "e2b")):
    said = subprocess.run([sys.executable, "bench/sdk/held.py", name, TAG, str(N)], check=True, capture_output=True)
    held[kind] = float(said.stdout)
for name in PROGRAMS:
    program = started(name)
    held[name], = program.tell(f"held {N}")
    program.end()

NAMES = {**{work: name for work, (name, _) in WORKS.items()}, "many": f"create → first command, {N} at once"}
figures = {name: {kind: {"p50_ms": round(1000 * statistics.median(wall for wall, _ in got), 2),
                         "cpu_ms": round(1000 * statistics.mean(cpu for _, cpu in got), 2), "count": len(got)}
                  for kind, got in costs[work].items()} for work, name in NAMES.items()}
print(f"{RUNS} runs, {N} at once; {os.cpu_count()} CPUs, load {os.getloadavg()[1]:.1f}; VMs are faked")
for title, unit in (("Time, p50 in ms", "p50_ms"), ("CPU time of the client, mean in ms", "cpu_ms")):
    print(f"\n{title}\n\n| what | /v1 by HTTP | Python adds | TypeScript adds | Go adds | E2B's API by HTTP | E2B's SDK adds | Python : E2B |")
    print("| --- |" + " ---: |" * 7)
    for name, row in figures.items():
        c = {kind: figure[unit] for kind, figure in row.items()}
        ours, theirs = c["python"] - c["http"], c["e2b"] - c["http-e2b"]
        ratio = f"{ours / theirs:.2f}" if theirs > 0 and ours > 0 else ""
        cells = c["http"], ours, c["typescript"] - c["http"], c["go"] - c["http"], c["http-e2b"], theirs
        print(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + f" | {ratio} |")
print(f"\nMemory that a process takes for each of {N} sandboxes that it holds, KiB: Python {held['python']:.0f}, "
      f"TypeScript {held['typescript']:.0f}, Go {held['go']:.0f}, E2B's SDK for Python {held['e2b']:.0f}")
with open(os.environ["COMPAT_OUT"], "w") as out:
    json.dump({"runs": RUNS, "at_once": N, "rows": [{"what": name, **row} for name, row in figures.items()], "held_kib": held}, out, indent=1)
daemon.stdin.close()
daemon.wait(60)
