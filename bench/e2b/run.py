"""Measures how long programs with E2B's SDK wait: from a creation until the end of the first command, and
until the first value of run_code. It measures one sandbox after another, and many at the same time.

Each wait is measured through the SDK, and with the same requests by a plain HTTP client. The latter is the
share of the server: the daemon, the VM and the network between them. The rest is the SDK's own. Memory is
that of the VMM processes while all of them run. A table goes to standard output, and the figures go to
$COMPAT_OUT. scripts/bench e2b starts this. N is the number of concurrent sandboxes (100), and RUNS the
number of successive ones (20).
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import statistics
import struct
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

URL, TOKEN, TAG = os.environ["FORKD_URL"], os.environ["FORKD_TOKEN"], os.environ["COMPAT_TAG"]
os.environ.update(E2B_API_URL=URL, E2B_SANDBOX_URL=URL, E2B_API_KEY=TOKEN, E2B_VALIDATE_API_KEY="false")

from e2b_code_interpreter import AsyncSandbox, Sandbox  # noqa: E402

N, RUNS = int(os.environ.get("N", "100")), int(os.environ.get("RUNS", "20"))
WAIT = 600  # seconds that one request may take on a slow host
LIFE = 3600


def ask(path: str) -> dict:
    req = urllib.request.Request(URL + path, headers={"Authorization": "Bearer " + TOKEN})
    return json.load(urllib.request.urlopen(req, timeout=WAIT))


class Wire:
    """A sandbox, used by the requests that the SDK makes, on one connection."""

    def __init__(self) -> None:
        self.conn = http.client.HTTPConnection(urlsplit(URL).netloc, timeout=WAIT)
        self.unread: http.client.HTTPResponse | None = None
        self.box = json.loads(self.request("POST", "/v2/sandboxes", {"templateID": TAG, "timeout": LIFE}, {"X-API-KEY": TOKEN}))

    def request(self, method: str, path: str, body: object, headers: dict, end: bytes = b"") -> bytes:
        """Returns the body of the answer. A stream is read until the event that the SDK waits for too."""
        p = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.conn.request(method, path, p, {"Content-Type": "application/json", **headers})
        resp = self.conn.getresponse()
        got = b"" if end else resp.read()
        while end and end not in got:
            part = resp.read1(65536)
            if not part:
                break
            got += part
        self.unread = resp
        if resp.status >= 300:
            raise RuntimeError(f"{method} {path}: {resp.status} {got[:200]!r}")
        return got

    def settle(self) -> None:
        self.unread.read()

    def service(self, port: int, path: str, body: object, kind: str, end: bytes) -> bytes:
        return self.request("POST", path, body, {"E2b-Sandbox-Id": self.box["sandboxID"], "E2b-Sandbox-Port": str(port),
                                                 "X-Access-Token": self.box["envdAccessToken"], "Content-Type": kind}, end)

    def command(self) -> None:
        start = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hi"]}, "stdin": False}).encode()
        got = self.service(49983, "/process.Process/Start", struct.pack(">BI", 0, len(start)) + start, "application/connect+json", b'"end":')
        assert base64.b64encode(b"hi\n") in got, got

    def code(self) -> None:
        got = self.service(49999, "/execute", {"code": "1+1"}, "application/json", b"end_of_execution")
        assert b'"text":"2"' in got.replace(b" ", b""), got

    def kill(self) -> None:
        self.settle()
        self.request("DELETE", "/sandboxes/" + self.box["sandboxID"], b"", {"X-API-KEY": TOKEN})


class SDK:
    def __init__(self) -> None:
        self.box = Sandbox.create(TAG, timeout=LIFE, request_timeout=WAIT)

    def command(self) -> None:
        assert self.box.commands.run("echo hi", request_timeout=WAIT, timeout=WAIT).stdout == "hi\n"

    def code(self) -> None:
        assert self.box.run_code("1+1", timeout=WAIT, request_timeout=WAIT).text == "2"

    def settle(self) -> None:
        pass

    def kill(self) -> None:
        self.box.kill()


def one(client: type, work: str) -> tuple[float, object]:
    began = time.perf_counter()
    box = client()
    getattr(box, work)()
    return time.perf_counter() - began, box


def in_turn(work: str) -> list[list[float]]:
    """The times of the SDK and of the plain client. They take turns, so that other work of the host affects both."""
    times: list[list[float]] = [[], []]
    for _ in range(RUNS):
        for client, taken in zip((SDK, Wire), times):
            took, box = one(client, work)
            taken.append(took)
            box.kill()
    return times


def warm(work: str) -> list[list[float]]:
    boxes, times = [one(client, work)[1] for client in (SDK, Wire)], [[], []]
    for _ in range(RUNS):
        for box, taken in zip(boxes, times):
            box.settle()
            began = time.perf_counter()
            getattr(box, work)()
            taken.append(time.perf_counter() - began)
    for box in boxes:
        box.kill()
    return times


def wire_at_once(work: str) -> tuple[list[float], float, int]:
    with ThreadPoolExecutor(N) as pool:
        began = time.perf_counter()
        tasks = [pool.submit(one, Wire, work) for _ in range(N)]
        made = [t.result() for t in tasks if t.exception() is None]
        took = time.perf_counter() - began
    for _, box in made:
        box.kill()
    return [t for t, _ in made], took, N - len(made)


async def sdk_at_once(work: str) -> tuple[list[float], float, int, list[dict]]:
    async def go() -> tuple[float, AsyncSandbox]:
        began = time.perf_counter()
        box = await AsyncSandbox.create(TAG, timeout=LIFE, request_timeout=WAIT)
        if work == "command":
            await box.commands.run("echo hi", request_timeout=WAIT, timeout=WAIT)
        else:
            await box.run_code("1+1", timeout=WAIT, request_timeout=WAIT)
        return time.perf_counter() - began, box

    began = time.perf_counter()
    made = await asyncio.gather(*[go() for _ in range(N)], return_exceptions=True)
    took = time.perf_counter() - began
    refused = [m for m in made if isinstance(m, BaseException)]
    for text in sorted({str(e)[:120] for e in refused}):
        print(f"refused: {text}", file=sys.stderr)
    boxes = [m for m in made if not isinstance(m, BaseException)]
    memory = [ask(f"/v1/sandboxes/{box.sandbox_id}/stats") for _, box in boxes]
    for _, box in boxes:
        await box.kill()
    return [t for t, _ in boxes], took, len(refused), memory


def figures(times: list[float]) -> dict:
    ms = sorted(t * 1000 for t in times)
    if not ms:
        return {"count": 0}
    return {"count": len(ms), "p50_ms": round(statistics.median(ms), 1), "p99_ms": round(ms[int(0.99 * (len(ms) - 1))], 1)}


def row(what: str, sdk: list[float], wire: list[float], **more) -> dict:
    r = {"what": what, "sdk": figures(sdk), "wire": figures(wire), **more}
    if sdk and wire:
        r["server_share"] = round(statistics.median(wire) / statistics.median(sdk), 2)
    cells = [what, *(str(r[k].get(p, "")) for k in ("sdk", "wire") for p in ("p50_ms", "p99_ms")), str(r.get("server_share", ""))]
    print("| " + " | ".join(c.rjust(w) for c, w in zip(cells, (44, 9, 9, 9, 9, 7))) + " |", flush=True)
    return r


accel = ask("/version")["accel"]
print(f"E2B's SDK for Python, {RUNS} in turn, {N} at once; {os.cpu_count()} CPUs; VMs by {accel}"
      + (": emulated, so that only ratios inside this table mean something" if accel != "kvm" else "") + "\n")
print("|" + "what".rjust(45) + " | SDK p50 | SDK p99 | wire p50 | wire p99 | server's share |")
print("|" + " ---: |" * 6)
one(SDK, "code")[1].kill()  # warms the caches
rows, memory = [], []
for work, name in (("command", "first command"), ("code", 'run_code("1+1")')):
    rows.append(row(f"create → {name}", *in_turn(work)))
    rows.append(row(f"{name}, again in the same sandbox", *warm(work)))
    sdk, sdk_all, refused, stats = asyncio.run(sdk_at_once(work))
    wire, wire_all, wire_refused = wire_at_once(work)
    memory += stats
    rows.append(row(f"create → {name}, {len(sdk)} at once", sdk, wire, refused=refused, wire_refused=wire_refused,
                    sdk_all_ms=round(sdk_all * 1000, 1), wire_all_ms=round(wire_all * 1000, 1)))
per = {k: statistics.median(m[k] for m in memory) if memory else None for k in ("pss_kib", "private_kib", "guest_dirty_kib")}
print(f"\nmemory of a sandbox, median: {per['pss_kib']} KiB proportional, {per['private_kib']} KiB private, "
      f"{per['guest_dirty_kib']} KiB of guest pages written")
refused = sum(r.get("refused", 0) for r in rows)
if refused:
    print(f"{refused} creations of {2 * N} at once were refused by this host: see above")
with open(os.environ["COMPAT_OUT"], "w") as f:
    json.dump({"accel": accel, "emulated": accel != "kvm", "cpus": os.cpu_count(), "runs": RUNS, "at_once": N,
               "rows": rows, "memory": per}, f, indent=1)
