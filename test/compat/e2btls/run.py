"""E2B's SDKs for both languages, and its command line, over TLS. They use the host names of sandboxes and
the certificates of `forkd e2b setup`. sdk.py, sdk.mjs and cli.py have the cases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import npm
from report import Report

PACKAGES = [*npm.sdk("e2b"), "@e2b/cli@2.19.0"]

r = Report("e2b (PyPI) and " + " and ".join(PACKAGES) + " (npm), over TLS")
here, there = os.path.dirname(os.path.abspath(__file__)), os.path.join(sys.prefix, "npm")
env = {**os.environ, "PATH": os.path.join(sys.prefix, "bin") + os.pathsep + os.environ["PATH"], "CGO_ENABLED": "0"}
for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN"):
    env.pop(name, None)
os.makedirs(there, exist_ok=True)
subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", there, *PACKAGES], env=env, check=True)
shutil.copy(os.path.join(here, "sdk.mjs"), there)
for program in (f"{sys.executable} {here}/sdk.py", f"node {there}/sdk.mjs", f"{sys.executable} {here}/cli.py"):
    test = ["go", "test", "-count=1", "-v", "-run", "^TestSDK$", "./test/compat/e2btls"]
    with subprocess.Popen(test, env={**env, "E2B_TLS_PROGRAM": program}, stdout=subprocess.PIPE, text=True) as go:
        for line in go.stdout:
            if line.startswith("case "):
                case = json.loads(line[5:])
                r.add(case["name"], case["outcome"], case["reason"], case["seconds"])
            else:
                print(line, end="", flush=True)
    if go.returncode != 0:
        r.add(f"{os.path.basename(program)} as a whole", "failed", f"go test ended with status {go.returncode}")
r.finish()
