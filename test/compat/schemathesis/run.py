"""schemathesis: requests that the API's document allows, and others, against the real API over fake VMs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from report import Report

r = Report("schemathesis 4.32.5 (PyPI)")
UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> str:
    m = re.fullmatch(r"(\d+)([smh])", text)
    if not m:
        sys.exit(f"DURATION={text}: want a number and s, m or h, such as 10m")
    return str(int(m[1]) * UNITS[m[2]])


report = os.path.join(os.path.dirname(os.environ["COMPAT_OUT"]), "schemathesis-run.json")
hooks = os.path.dirname(os.path.abspath(__file__))
env = {**os.environ, "PYTHONPATH": hooks, "SCHEMATHESIS_HOOKS": "hooks",
       "SCHEMATHESIS": os.path.join(os.path.dirname(sys.executable), "schemathesis"),
       "SCHEMATHESIS_SECONDS": seconds(os.environ.get("DURATION", "10m")), "SCHEMATHESIS_REPORT": report}
code = subprocess.run(["go", "test", "-count=1", "-timeout", "24h", "-v", "-run", "^TestSchemathesis$",
                       "./test/compat/schemathesis"], env=env).returncode
r.add("the API is as its document says", "passed" if code == 0 else "failed",
      None if code == 0 else f"see {report} and the output above")
r.finish()
