"""Runs the cases of a group one after another and writes the results. Every group of test/compat uses it.

A group is a folder with a run.py. Its environment has the published client (the packages of the
requirements.txt in the folder). $FORKD_URL, $FORKD_TOKEN and $COMPAT_TAG name a daemon with real VMs, and a
snapshot with a warm Python interpreter. The module knows nothing of other groups.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass

TAG = os.environ["COMPAT_TAG"]
AGE = os.environ.get("COMPAT_AGE", "")  # the month of the packages; empty for the newest


class NotApplicable(Exception):
    """The case needs something that does not exist here; the text says why."""


def offers(cls: type, method: str, parameter: str = "") -> None:
    """Ends the current case as not applicable if an older package lacks the method, or the parameter. The
    newest package must have them."""
    found = getattr(cls, method, None)
    if AGE and (found is None or parameter and parameter not in inspect.signature(found).parameters):
        raise NotApplicable(f"the package of {AGE} has no {parameter and parameter + ' of '}{cls.__name__}.{method}")


@dataclass
class Tally:
    """The numbers of a tool's tests. The total has expected failures too, but no skipped tests."""

    passed: int = 0
    total: int = 0
    failed: int = 0  # unexpectedly
    not_run: int = 0  # for example because an emulated host is too slow

    def add(self, outcome: str) -> None:
        self.passed += outcome == "passed"
        self.failed += outcome == "failed"
        self.total += 1


class Report:
    def __init__(self, client: str, vms: str = "") -> None:
        self.client = client
        self.cases: list[dict] = []
        self.tools: dict[str, dict] = {}
        real = "emulated host" if "COMPAT_EMULATED" in os.environ else "host"
        self.vms = vms or ("faked" if AGE.startswith("rig") else real)  # where the VMs run

    def case(self, name: str, run) -> object:
        """Runs one case. Returns its result, or None if it failed."""
        began, outcome, reason, result = time.monotonic(), "passed", None, None
        try:
            result = run()
        except NotApplicable as e:
            outcome, reason = "not_applicable", str(e)
        except Exception as e:  # any exception of the client after a wrong answer
            outcome, reason = "failed", f"{type(e).__name__}: {e}"
            traceback.print_exc()
        self.add(name, outcome, reason, time.monotonic() - began)
        return result

    def add(self, name: str, outcome: str, reason: str | None = None, seconds: float = 0) -> None:
        entry = {"name": name, "outcome": outcome, "seconds": round(seconds, 2)}
        if reason:
            entry["reason"] = reason
        self.cases.append(entry)
        print(f"{outcome:15}{name}" + (f": {reason}" if reason else ""), flush=True)

    def tool(self, name: str, version: str, tally: Tally, suite: str = "") -> None:
        """Sets the numbers of a tool in docs/integrations.md. record.py keeps them in test/compat/results, and if they
        are there already, for this version, they must be the same: otherwise tests could disappear unnoticed."""
        entry = {"version": version, "suite": suite, **asdict(tally)}
        self.tools[name] = entry

        def same() -> None:
            kept = recorded_tools(os.environ.get("COMPAT_GROUP", "")).get(name)
            if kept is None or any(kept[key] != entry[key] for key in ("version", "suite")):
                raise NotApplicable("test/compat/results has no results of this version")
            if tally.not_run or kept["not_run"]:
                raise NotApplicable("some tests did not run")
            numbers = f"{tally.passed} of {tally.total}"
            want(numbers == f"{kept['passed']} of {kept['total']}", f"{numbers}; the recorded run has {kept}")

        self.case(f"{name}: the numbers are those of the recorded run", same)

    def covered(self, what: str, public: set[str], used: set[str]) -> None:
        """A case of its own: all public names were used."""
        missing = sorted(public - used)
        self.add(f"every public {what} is covered", "failed" if missing else "passed",
                 f"not covered: {', '.join(missing)}" if missing else None)

    def finish(self) -> None:
        """Writes $COMPAT_OUT and exits, with status 1 if a case failed."""
        counts = {o: sum(c["outcome"] == o for c in self.cases) for o in ("passed", "failed", "not_applicable")}
        with open(os.environ["COMPAT_OUT"], "w") as f:
            json.dump({"client": self.client, **counts, "tools": self.tools, "vms": self.vms,
                       "date": time.strftime("%Y-%m-%d", time.gmtime()), "cases": self.cases}, f, indent=1)
        sys.exit(1 if counts["failed"] else 0)


def results(group: str) -> str:
    """The file in which record.py keeps the numbers of a group's tools."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "results", group + ".json")


def recorded_tools(group: str) -> dict[str, dict]:
    try:
        with open(results(group)) as f:
            return json.load(f)
    except FileNotFoundError:
        return {}


def want(condition: object, what: object) -> None:
    if not condition:
        raise AssertionError(what)


def recorded(cls: type, used: set[str]) -> set[str]:
    """Records in used which public methods of cls are called, and returns all public methods."""
    names = {n for n, v in vars(cls).items() if not n.startswith("_") and (callable(v) or isinstance(v, classmethod))}
    for name in names:
        member = vars(cls)[name]
        func = member.__func__ if isinstance(member, classmethod) else member

        def call(*args, _func=func, _name=name, **kwargs):
            used.add(_name)
            return _func(*args, **kwargs)

        setattr(cls, name, classmethod(call) if isinstance(member, classmethod) else call)
    return names
