"""Groups whose client is a package of npm: installs it, and runs cases that are written in JavaScript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from report import Report


def install(packages: list[str], env: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Installs packages into a directory beside the group's Python; returns that, and env with their Node in its path."""
    there = os.path.join(sys.prefix, "npm")
    env = {**env, "PATH": os.path.join(sys.prefix, "bin") + os.pathsep + env["PATH"]}
    os.makedirs(there, exist_ok=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", there, *packages], env=env, check=True)
    return there, env


def run(here: str, packages: list[str]) -> None:
    """Installs the packages beside run.mjs of the folder here, runs that, and ends the process with what came of it.
    It prints a line of JSON for each case; see cases.mjs."""
    r = Report(" and ".join(packages) + " (npm)")
    there, env = install(packages, {**os.environ, "E2B_API_URL": os.environ["FORKD_URL"],
                                    "E2B_SANDBOX_URL": os.environ["FORKD_URL"], "E2B_API_KEY": os.environ["FORKD_TOKEN"]})
    for file in (os.path.join(here, "run.mjs"), os.path.join(os.path.dirname(__file__), "cases.mjs")):
        shutil.copy(file, there)
    with subprocess.Popen(["node", "run.mjs"], cwd=there, env=env, stdout=subprocess.PIPE, text=True) as node:
        for line in node.stdout:
            case = json.loads(line)
            r.add(case["name"], case["outcome"], case.get("reason"), case["seconds"])
    if node.returncode != 0:
        r.add("the suite itself", "failed", f"node ended with status {node.returncode}")
    r.finish()
