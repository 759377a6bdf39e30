"""For groups whose client is a package of npm: installs it, and runs cases that are written in JavaScript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import hostnames
from report import AGE, Report

# The newest packages and, by month, older ones: those that `npm install --before` selected at that time.
SDK = {
    "": {"e2b": "2.51.0", "@e2b/code-interpreter": "2.8.0"},
    "2026-05": {"e2b": "2.21.0", "@e2b/code-interpreter": "2.4.2"},
}


def sdk(*names: str) -> list[str]:
    """The packages of E2B that npm must install."""
    packages = SDK["" if AGE == "rig" else AGE]
    return [f"{name}@{packages[name]}" for name in names]


def install(packages: list[str], env: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Installs packages into a directory next to the group's Python. Returns the directory, and env with
    their Node in its path."""
    there = os.path.join(sys.prefix, "npm")
    env = {**env, "PATH": os.path.join(sys.prefix, "bin") + os.pathsep + env["PATH"]}
    os.makedirs(there, exist_ok=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", there, *packages], env=env, check=True)
    return there, env


def run(here: str, packages: list[str], by_host_names: bool = False) -> None:
    """Installs the packages next to run.mjs of the folder here, runs it, and exits with the results.

    run.mjs prints a line of JSON for each case; see cases.mjs."""
    r = Report(" and ".join(packages) + " (npm)")
    shared = [os.path.join(os.path.dirname(__file__), name) for name in ("cases.mjs", "hostnames.mjs")]
    there, env = install(packages, {**os.environ, "E2B_API_URL": os.environ["FORKD_URL"],
                                    "E2B_SANDBOX_URL": os.environ["FORKD_URL"], "E2B_API_KEY": os.environ["FORKD_TOKEN"]})
    if by_host_names:
        hostnames.begin()  # after the installation, because npm could not find its registry
        env = {**env, **{name: os.environ[name] for name in hostnames.SETS}}
    for file in (os.path.join(here, "run.mjs"), *shared):
        shutil.copy(file, there)
    with subprocess.Popen(["node", "--import", "./hostnames.mjs", "run.mjs"], cwd=there, env=env, stdout=subprocess.PIPE, text=True) as node:
        for line in node.stdout:
            case = json.loads(line)
            r.add(case["name"], case["outcome"], case.get("reason"), case["seconds"])
    if node.returncode != 0:
        r.add("the suite itself", "failed", f"node ended with status {node.returncode}")
    r.finish()
