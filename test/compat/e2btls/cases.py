"""The common parts of the programs with cases. run.py reads a line of JSON for each case."""

from __future__ import annotations

import json
import time


def case(name: str, run) -> None:
    began, outcome, reason = time.monotonic(), "passed", None
    try:
        run()
    except Exception as e:  # any exception of the client after a wrong answer
        outcome, reason = "failed", f"{type(e).__name__}: {e}"
    print("case " + json.dumps({"name": name, "outcome": outcome, "reason": reason, "seconds": time.monotonic() - began}), flush=True)


def want(ok: object, what: object) -> None:
    if not ok:
        raise AssertionError(what)
