"""Joins the results of the groups, out/compat/<group>.json, to out/compat.json and prints a table.

$COMPAT_REPORT names another file for the joined results. Usage: merge.py GROUP... A group without a result has failed. The exit status is 1 if anything has failed."""

import json
import os
import sys

merged = {}
for group in sys.argv[1:]:
    path = os.path.join("out", "compat", group + ".json")
    try:
        with open(path) as f:
            merged[group] = json.load(f)
    except (OSError, ValueError) as e:
        reason = f"it ended without a result: {e}"
        merged[group] = {"passed": 0, "failed": 1, "not_applicable": 0,
                         "cases": [{"name": "the group itself", "outcome": "failed", "reason": reason}]}
with open(os.environ.get("COMPAT_REPORT") or os.path.join("out", "compat.json"), "w") as f:
    json.dump(merged, f, indent=1)
    f.write("\n")
print(f"\n{'group':34}{'passed':>8}{'failed':>8}{'not applicable':>16}{'seconds':>9}")
for group, result in merged.items():
    print(f"{group:34}{result['passed']:>8}{result['failed']:>8}{result['not_applicable']:>16}{sum(case.get('seconds', 0) for case in result['cases']):>9.0f}")
for outcome in ("not_applicable", "failed"):  # failures come last, because CI keeps only the end of a log
    for group, result in merged.items():
        for case in result["cases"]:
            if case["outcome"] == outcome:
                print(f"{group}: {case['name']}: {outcome}: {case.get('reason')}")
sys.exit(1 if any(r["failed"] for r in merged.values()) else 0)
