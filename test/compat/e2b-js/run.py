"""The npm packages e2b 2.51.0 and @e2b/code-interpreter 2.8.0: run.mjs has the cases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from report import Report

PACKAGES = ["e2b@2.51.0", "@e2b/code-interpreter@2.8.0"]

r = Report(" and ".join(PACKAGES) + " (npm)")
here, there = os.path.dirname(os.path.abspath(__file__)), os.path.join(sys.prefix, "npm")
env = {**os.environ, "PATH": os.path.join(sys.prefix, "bin") + os.pathsep + os.environ["PATH"],
       "E2B_API_URL": os.environ["FORKD_URL"], "E2B_SANDBOX_URL": os.environ["FORKD_URL"], "E2B_API_KEY": os.environ["FORKD_TOKEN"]}
os.makedirs(there, exist_ok=True)
subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", there, *PACKAGES], env=env, check=True)
shutil.copy(os.path.join(here, "run.mjs"), there)
with subprocess.Popen(["node", "run.mjs"], cwd=there, env=env, stdout=subprocess.PIPE, text=True) as node:
    for line in node.stdout:
        case = json.loads(line)
        r.add(case["name"], case["outcome"], case.get("reason"), case["seconds"])
if node.returncode != 0:
    r.add("the suite itself", "failed", f"node ended with status {node.returncode}")
r.finish()
