"""The contract of the SDKs for Python, TypeScript and Go, against one daemon with real VMs.

The scenarios are those of test/contract, except those that need a fake daemon. Python runs them with both
of its halves, sync and async. With COMPAT_QUICK, the async half and Go are omitted. Python and TypeScript then
run only the scenarios that need VMs: each scenario runs in one of the two languages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import types
import typing

import gomodule
from report import Report

URL, TOKEN, TAG = (os.environ[name] for name in ("FORKD_URL", "FORKD_TOKEN", "COMPAT_CONTRACT_TAG"))
SDK = os.path.join(gomodule.ROOT, "sdk")
sys.path.insert(0, os.path.join(SDK, "python/tests"))
import contract_runner  # noqa: E402

r = Report("the SDKs of this repository")
quick = "COMPAT_QUICK" in os.environ
scenarios = [s for s in contract_runner.scenarios() if s.get("needs") in (["vm"] if quick else ["vm", None])]
there = os.path.join(sys.prefix, "contract")
env = {**os.environ, "PATH": os.path.join(sys.prefix, "bin") + os.pathsep + os.environ["PATH"], "FORKD_CONTRACT_URL": URL,
       "FORKD_CONTRACT_SNAPSHOT": TAG, "FORKD_CONTRACT": os.path.join(gomodule.ROOT, "test/contract"), "npm_config_update_notifier": "false"}


def in_python(half: str) -> None:
    daemon = types.SimpleNamespace(url=URL, token=TOKEN, snapshot=TAG, tmp="/tmp", file=None)
    for scenario in scenarios[::2] if quick else scenarios:
        r.case(f"Python, {half}: {scenario['name']}", lambda scenario=scenario: contract_runner.Runner(daemon, half).run(scenario))


def in_typescript() -> None:
    """Runs the sources, with the one package that the runner of scenarios needs."""
    folder = os.path.join(there, "typescript")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for part in ("src", "test"):
        shutil.copytree(os.path.join(SDK, "typescript", part), os.path.join(folder, part))
    with open(os.path.join(SDK, "typescript/package.json")) as f:
        yaml = json.load(f)["devDependencies"]["yaml"]
    with open(os.path.join(folder, "package.json"), "w") as f:
        json.dump({"type": "module", "private": True}, f)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", f"yaml@{yaml}"], cwd=folder, env=env, check=True)
    names = "|".join(re.escape(s["name"]) for s in (scenarios[1::2] if quick else scenarios))
    node = subprocess.run(["node", "--test", "--test-reporter=tap", f"--test-name-pattern=^({names})$", "test/contract.test.ts"], cwd=folder, env=env, stdout=subprocess.PIPE, text=True,
                          timeout=900, check=False)
    cases = re.findall(r"^(not )?ok \d+ - ([^\n]*)\n  ---\n(.*?)^  \.\.\.$", node.stdout, re.MULTILINE | re.DOTALL)
    for failed, name, details in cases:
        took = re.search(r"duration_ms: ([\d.]+)", details)
        if " # SKIP" not in name:
            r.add(f"TypeScript: {name}", "failed" if failed else "passed", details[:1500] if failed else None, float(took[1]) / 1000 if took else 0)
    if node.returncode or not cases:
        r.add("TypeScript as a whole", "failed", f"node ended with status {node.returncode}: {node.stdout[-300:]}")


def in_go() -> None:
    user = os.path.join(there, "go")
    gomodule.make(user, "test/compat/sdk-go/testdata/user_test.go")
    gomodule.tests(r, "Go", user, skipped=False, FORKD_CONTRACT_SNAPSHOT=TAG)


def timed(name: str, run: typing.Callable[[], None]) -> None:
    began = time.monotonic()
    r.case(f"{name}: the scenarios can be done", run)
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


# make test also runs all scenarios: with Go in test/integration, and with faked VMs in the groups of the SDKs.
halves = {"Python": lambda: in_python("sync"), "TypeScript": in_typescript}
if not quick:
    halves |= {"Python, async": lambda: in_python("async"), "Go": in_go}
for name, run in halves.items():
    timed(name, run)
r.finish()
