"""The requests of the TypeScript package @deeplethe/forkd 0.5.3, which is not on npm: the requests of its
methods, with the headers that Node's fetch adds, and the fields that its types promise."""

from __future__ import annotations

import http.client
import json
import os
from urllib.parse import urlsplit

from report import TAG, Report, want

r = Report("@deeplethe/forkd 0.5.3 (its requests, replayed)")
url = urlsplit(os.environ["FORKD_URL"])
NODE = {"accept": "*/*", "accept-language": "*", "sec-fetch-mode": "cors", "user-agent": "node", "accept-encoding": "identity"}
SANDBOX = {"id": str, "snapshot_tag": str, "guest_addr": str, "created_at_unix": int, "has_branched": bool, "branch_count": int}
SNAPSHOT = {"tag": str, "dir": str, "created_at_unix": int, "status": str, "bootable": bool}


def fetch(method: str, path: str, body: dict | None = None, status: int = 200, token: str | None = None) -> object:
    conn = http.client.HTTPConnection(url.hostname, url.port, timeout=300)
    headers = {**NODE, "authorization": "Bearer " + (token or os.environ["FORKD_TOKEN"])}
    if body is not None:
        headers["content-type"] = "application/json"
    conn.request(method, path, None if body is None else json.dumps(body), headers)
    answer = conn.getresponse()
    text = answer.read()
    conn.close()
    want(answer.status == status, f"{answer.status}: {text!r}")
    if status >= 400:
        want(isinstance(json.loads(text)["error"], str), text)
    return json.loads(text) if text else None


def has(record: dict, fields: dict) -> dict:
    for name, kind in fields.items():
        want(isinstance(record.get(name), kind), f"{name} of {record}")
    return record


def spawn(n: int = 1, tag: str = TAG, **more) -> list:
    made = fetch("POST", "/v1/sandboxes", {"snapshot_tag": tag, "n": n, **more}, 201)
    return [has(s, SANDBOX) for s in made]


def executed() -> None:
    got = fetch("POST", f"/v1/sandboxes/{box}/exec", {"args": ["sh", "-c", "echo a; exit 2"], "timeout_secs": 30})
    want((got["stdout"], got["stderr"], got["exit_code"]) == ("a\n", "", 2), got)


def evaluated() -> None:
    got = fetch("POST", f"/v1/sandboxes/{box}/eval", {"code": "2 ** 10"})
    want(got["result"] == "1024" and got["exit_code"] == 0, got)


def branched(body: dict, status: int = 201) -> None:
    info = has(fetch("POST", f"/v1/sandboxes/{box}/branch", body, status), SNAPSHOT)
    child = spawn(tag=info["tag"])[0]["id"]
    fetch("DELETE", f"/v1/sandboxes/{child}", status=204)
    fetch("DELETE", f"/v1/snapshots/{info['tag']}", status=204)


def killed() -> None:
    fetch("DELETE", f"/v1/sandboxes/{box}", status=204)
    fetch("GET", f"/v1/sandboxes/{box}", status=404)


r.case("listSnapshots", lambda: [has(s, SNAPSHOT) for s in fetch("GET", "/v1/snapshots")])
box = (r.case("spawnSandboxes, every option", lambda: spawn(
    per_child_netns=True, memory_limit_mib=400, prewarm=True, live_fork=True, hugepages=True)) or spawn())[0]["id"]
r.case("listSandboxes", lambda: want(box in [has(s, SANDBOX)["id"] for s in fetch("GET", "/v1/sandboxes")], "not listed"))
r.case("getSandbox", lambda: has(fetch("GET", f"/v1/sandboxes/{box}"), SANDBOX))
r.case("pingSandbox, without a body", lambda: want(fetch("POST", f"/v1/sandboxes/{box}/ping")["pong"] is True, "no pong"))
r.case("pingSandbox, with an empty object", lambda: fetch("POST", f"/v1/sandboxes/{box}/ping", {}))
r.case("execCommand", executed)
r.case("evalCode", evaluated)
r.case("branchSandbox", lambda: branched({}))
r.case("branchSandbox, tag and diff", lambda: branched({"tag": "compat-ts-1", "diff": True}))
r.case("branchSandbox, measure_diff", lambda: branched({"tag": "compat-ts-2", "measure_diff": True}))
for mode in ("full", "diff"):
    r.case(f"branchSandbox, {mode}, wait", lambda: branched({"tag": "compat-ts-3", "mode": mode, "wait": True}))
r.case("branchSandbox, live, no wait", lambda: branched({"tag": "compat-ts-4", "mode": "live", "wait": False}, 202))
r.case("deleteSnapshot, unknown", lambda: fetch("DELETE", "/v1/snapshots/compat-none", status=404))
r.case("a wrong token", lambda: fetch("GET", "/v1/snapshots", status=401, token="wrong" * 4))
r.case("killSandbox", killed)
r.finish()
