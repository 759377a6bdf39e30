"""The Python SDK of this repository, from its wheel: its packages, its types, its tests, and its documents,
in an environment that has nothing else. VMs are fake.

SANDBOXES is the number of sandboxes in one test: 10000, or 300 with COMPAT_QUICK. COMPAT_PYTHONS lists more
interpreters, separated by spaces, with which the tests run too."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

from report import Report

ROOT = os.getcwd()
SDK = os.path.join(ROOT, "sdk/python")
BIN = os.path.dirname(sys.executable)
QUICK = "COMPAT_QUICK" in os.environ
TESTS = ["pytest==9.2.0", "PyYAML==6.0.4"]
r = Report("forkd (sdk/python)")


def run(*args: str, cwd: str = SDK, **env: str) -> str:
    """Runs a program, which must succeed, and returns its output."""
    got = subprocess.run(args, cwd=cwd, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if got.returncode:
        print(got.stdout, flush=True)
        raise RuntimeError(f"{' '.join(args[:3])} ended with status {got.returncode}")
    return got.stdout


def tool(name: str, *args: str, **env: str) -> str:
    return run(os.path.join(BIN, name), *args, **env)


def typed() -> None:
    # It finds the package through the Python of $PATH, not in a directory that also has the sources. The bases of the
    # adapters are classes of frameworks that this environment lacks; the group adapters checks their types.
    got = subprocess.run([BIN + "/pyright", "--ignoreexternal", "--outputjson", "--verifytypes", "forkd"], cwd=scratch,
                         env={**os.environ, "PATH": BIN + os.pathsep + os.environ["PATH"]}, stdout=subprocess.PIPE, text=True)
    symbols = json.loads(got.stdout)["typeCompleteness"]["symbols"]
    unknown = [s["name"] for s in symbols if s["isExported"] and not s["name"].startswith("forkd.integrations.")
               and (not s["isTypeKnown"] or s["isTypeAmbiguous"])]
    if unknown or len(symbols) < 500:
        raise RuntimeError(f"of {len(symbols)} symbols, these have no complete type: {unknown}")


def tests(python: str, name: str, rig: str, **env: str) -> None:
    """Runs the tests of the SDK. Each test is a case."""
    report = os.path.join(scratch, "tests.xml")
    began = time.monotonic()
    code = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "tests"], cwd=SDK,
                          env={**os.environ, "FORKD_RIG": rig, "SANDBOXES": "300" if QUICK else "10000", **env}).returncode
    for case in xml.parse(report).iter("testcase"):
        bad = next((e for e in case if e.tag in ("failure", "error")), None)
        r.add(f"{name}: {case.get('name')}", "passed" if bad is None else "failed", None if bad is None else bad.get("message"),
              float(case.get("time", 0)))
    r.add(f"{name}: the tests as a whole", "failed" if code else "passed", f"pytest ended with status {code}" if code else None,
          time.monotonic() - began)


with tempfile.TemporaryDirectory() as scratch:
    rig, dist, empty = (os.path.join(scratch, n) for n in ("rigd", "dist", "empty"))
    r.case("the fake daemon is built", lambda: run("go", "build", "-o", rig, "./test/contract/rigd", cwd=ROOT))
    r.case("wheel and sdist are built", lambda: run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist))
    files = glob.glob(dist + "/*")
    r.case("twine check", lambda: tool("twine", "check", "--strict", *files))
    r.case("check-wheel-contents", lambda: tool("check-wheel-contents", *glob.glob(dist + "/*.whl")))
    r.case("what is generated is up to date", lambda: run(sys.executable, "tools/generate.py", "--check"))
    r.case("ruff check", lambda: tool("ruff", "check", "--no-cache", "."))
    r.case("mypy --strict", lambda: tool("mypy", "--cache-dir", os.path.join(scratch, "mypy")))
    r.case("pyright --verifytypes: all of it is typed", typed)

    r.case("the reference is made", lambda: run(sys.executable, "-m", "pdoc", "-o", scratch + "/reference", "forkd",
                                                    "!forkd.integrations", cwd=scratch))

    def install() -> None:
        run(sys.executable, "-m", "venv", empty)
        run(empty + "/bin/pip", "install", "--quiet", "--disable-pip-version-check", *glob.glob(dist + "/*.whl"))

    r.case("the wheel is installed into an empty environment", install)
    tests(sys.executable, "tests", rig, FORKD_README_PYTHON=empty + "/bin/python")
    for python in os.environ.get("COMPAT_PYTHONS", "").split():
        there = os.path.join(scratch, "more")
        shutil.rmtree(there, ignore_errors=True)
        run(python, "-m", "venv", there)
        run(there + "/bin/pip", "install", "--quiet", "--disable-pip-version-check", *TESTS, *glob.glob(dist + "/*.whl"))
        tests(there + "/bin/python", run(there + "/bin/python", "--version").strip(), rig)
r.finish()
