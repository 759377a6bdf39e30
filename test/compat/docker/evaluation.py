"""SWE-bench's harness over the Docker socket, with a data set of two small tasks that need no network.

A task has an image with the repository at /testbed, a gold patch, a patch with tests, and a script that runs them. The
images are commits of one container, so all evaluations start from the same warm machine.
"""

from __future__ import annotations

import difflib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

from report import want

BEFORE = {
    "money.py": '''def cents(text):
    """The cents in an amount such as 12.50."""
    whole, _, part = text.partition(".")
    return int(whole) * 100 + int(part or 0)


def share(amount, people):
    """Divides cents among people without losing any."""
    return [amount // people] * people
''',
    "test_money.py": '''import unittest

from money import cents, share


class Money(unittest.TestCase):
    def test_whole(self):
        self.assertEqual(cents("12.50"), 1250)

    def test_even(self):
        self.assertEqual(share(10, 2), [5, 5])
''',
}
TASKS = {  # the line that the gold patch replaces, its replacement, and the test that passes only afterwards
    "shop__money-1": ('int(part or 0)', 'int((part + "00")[:2])', "one_digit", 'cents("1.5"), 150'),
    "shop__money-2": ("[amount // people] * people", "[amount // people + (n < amount % people) for n in range(people)]",
                      "rest", "share(7, 3), [3, 2, 2]"),
}
EVALUATE = """#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout HEAD test_money.py
git apply -v - <<'EOF_114329324912'
{patch}EOF_114329324912
: '>>>>> Start Test Output'
python3 -B -m unittest -v test_money
: '>>>>> End Test Output'
git checkout HEAD test_money.py
"""


def diff(name: str, after: str) -> str:
    """A patch as git writes it."""
    lines = difflib.unified_diff(BEFORE[name].splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    return f"diff --git a/{name} b/{name}\n" + "".join(lines)


def identifier(test: str) -> str:
    return f"test_{test} (test_money.Money.test_{test})"


def instance(name: str) -> dict:
    old, new, test, check = TASKS[name]
    added = f"\n    def test_{test}(self):\n        self.assertEqual({check})\n"
    tests = diff("test_money.py", BEFORE["test_money.py"] + added)
    return {
        "instance_id": name, "repo": "shop/money", "version": "1", "base_commit": "HEAD", "problem_statement": name,
        "image": f"swebench/sweb.eval.x86_64.{name.replace('__', '_1776_')}:latest",
        "patch": diff("money.py", BEFORE["money.py"].replace(old, new)), "test_patch": tests,
        "eval_script": EVALUATE.format(patch=tests), "log_parser": "parse_log_django", "eval_type": "pass_and_fail",
        "FAIL_TO_PASS": json.dumps([identifier(test)]),
        "PASS_TO_PASS": json.dumps([identifier("whole"), identifier("even")]),
    }


def evaluate(there: str, run: str, predictions: str, workers: int, wanted: dict[str, list[str]]) -> None:
    """Runs the harness, whose report must have the wanted lists."""
    command = [sys.executable, "-m", "swebench.harness.run_evaluation", "-d", "tasks.json", "-p", predictions, "-id", run,
               "--max_workers", str(workers), "--report_dir", run]
    got = subprocess.run(command, cwd=there, capture_output=True, text=True, timeout=1800,
                         env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": there})
    want(got.returncode == 0, f"the harness: exit code {got.returncode}\n{got.stdout}{got.stderr}")
    [name] = os.listdir(f"{there}/{run}")
    with open(f"{there}/{run}/{name}") as f:
        report = json.load(f)
    if (lists := {key: report[key] for key in wanted}) == wanted:
        return
    for path in sorted(pathlib.Path(there, "logs/run_evaluation", run).rglob("*.*")):
        print(f"== {path}", path.read_text(errors="replace"), sep="\n")
    raise AssertionError(f"the harness reports {lists}, want {wanted}\n{got.stdout}{got.stderr}")


def swebench(there: str, client, image: str, workers: int, equal: Callable[[object, object], None]) -> None:
    tasks = [instance(name) for name in TASKS]
    with open(f"{there}/tasks.json", "w") as f:
        json.dump(tasks, f)
    box = client.containers.create(image=image, name="compat-swebench", user="root", command="tail -f /dev/null")
    made = []

    def in_repository(command: str) -> None:
        equal(box.exec_run(["sh", "-c", "cd /testbed && " + command]), (0, b""))

    try:
        box.start()
        for name, text in BEFORE.items():
            write = f'mkdir -p /testbed && cd /testbed && printf %s "$TEXT" >{name}'
            equal(box.exec_run(["sh", "-c", write], environment={"TEXT": text}), (0, b""))
        commit = "git -c user.name=compat -c user.email=compat@localhost commit -qm before"
        in_repository(f"git init -q . && git add . && {commit} && git status --short")
        for task in tasks:
            box.commit(*task["image"].rsplit(":", 1))
            made.append(task["image"])

        evaluate(there, "gold", "gold", workers, {"resolved_ids": sorted(TASKS), "unstopped_containers": []})

        in_repository("git checkout -q . && git status --short")  # containers with faked VMs share this directory

        # A patch that repairs nothing, and one that cannot be applied.
        useless = diff("money.py", BEFORE["money.py"].replace("12.50", "13.50"))
        patches = [useless, tasks[1]["patch"].replace("people", "nobody")]
        with open(f"{there}/bad.json", "w") as f:
            json.dump([{"instance_id": task["instance_id"], "model_patch": patch, "model_name_or_path": "bad"}
                       for task, patch in zip(tasks, patches)], f)
        evaluate(there, "bad", "bad.json", workers,
                 {"resolved_ids": [], "unresolved_ids": ["shop__money-1"], "error_ids": ["shop__money-2"]})
    finally:
        box.remove(force=True)
        for name in made:
            client.images.remove(name)
