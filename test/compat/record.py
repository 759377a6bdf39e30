#!/usr/bin/env python3
"""Keeps the numbers of groups that have run, for the table of docs/integrations.md.

Usage: record.py [GROUP...]; the default is every group in out/compat that has numbers of tools. It copies these numbers
from out/compat/GROUP.json to test/compat/results/GROUP.json. Tools that were not part of this run keep the numbers of an
earlier run. Then it writes the table."""

import json
import os
import subprocess
import sys

os.environ.setdefault("COMPAT_TAG", "none")  # report.py expects a group
from report import recorded_tools, results  # noqa: E402

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
OUT = os.path.join(ROOT, "out/compat")


def record(group: str, required: bool) -> None:
    with open(os.path.join(OUT, group + ".json")) as f:
        run = json.load(f)
    if not run.get("tools"):
        if required:
            sys.exit(f"record: out/compat/{group}.json has no numbers of tools")
        return
    kept = recorded_tools(group)
    for tool, numbers in run["tools"].items():
        kept[tool] = {**numbers, "vms": run["vms"], "date": run["date"]}
        print(f"{group}: {tool}: {numbers['passed']} of {numbers['total']}")
    os.makedirs(os.path.dirname(results(group)), exist_ok=True)
    with open(results(group), "w") as f:
        json.dump(dict(sorted(kept.items())), f, indent=1)
        f.write("\n")


groups = sys.argv[1:] or sorted(name.removesuffix(".json") for name in os.listdir(OUT) if name.endswith(".json"))
for name in groups:
    record(name, bool(sys.argv[1:]))
subprocess.run(["go", "test", "-count=1", "./internal/lint", "-run", "TestIntegrationsTable", "-update"], cwd=ROOT, check=True)
