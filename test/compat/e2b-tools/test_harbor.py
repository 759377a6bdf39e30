"""Harbor: its oracle agent solves tasks in E2B's environment, which builds their templates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TASK = """
version = "1.0"
[metadata]
[verifier]
timeout_sec = 600.0
[agent]
timeout_sec = 600.0
[environment]
build_timeout_sec = 1200.0
{resources}
"""
DOCKERFILE = """FROM e2bdev/base
USER root
RUN mkdir -p /srv/task && echo word >/srv/task/question
WORKDIR /srv/task
"""
TEST = """#!/bin/bash
mkdir -p /logs/verifier
[ "$(cat /srv/task/answer)" = WORD ] && reward=1 || reward=0
echo $reward >/logs/verifier/reward.txt
"""


SOLUTION, LONG_NAME = "tr a-z A-Z <question >answer", "long-" + "n" * 70
TASKS = {  # their solutions, and the resources of their environments
    "capitals": (SOLUTION, ""),
    "wrong": ("cp question answer", ""),
    "resources": (SOLUTION, "cpus = 1\nmemory_mb = 1024"),
    LONG_NAME: (SOLUTION, ""),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """The results of a job that tries each task once, by task."""
    there = tmp_path_factory.mktemp("harbor")
    for name, (solution, resources) in TASKS.items():
        for file, content in {
            "task.toml": TASK.format(resources=resources),
            "instruction.md": "Write the word in capitals to /srv/task/answer.",
            "environment/Dockerfile": DOCKERFILE,
            "solution/solve.sh": f"#!/bin/bash\n{solution}\n",
            "tests/test.sh": TEST,
        }.items():
            path = there / "tasks" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            path.chmod(0o755)
    harbor = str(Path(sys.executable).with_name("harbor"))
    job = [
        "run",
        "-p",
        str(there / "tasks"),
        "-a",
        "oracle",
        "-e",
        "e2b",
        "-o",
        str(there),
        "--job-name",
        "job",
        "-n",
        "2",
        "-y",
        "-q",
    ]
    got = subprocess.run([harbor, *job], cwd=there, capture_output=True, text=True)
    results = [json.loads(path.read_text()) for path in there.glob("job/*/result.json")]
    assert len(results) == len(TASKS), got.stdout + got.stderr
    return {Path(r["task_name"]).name: r for r in results}


@pytest.mark.parametrize(("task", "reward"), [("capitals", 1), ("wrong", 0), ("resources", 1), (LONG_NAME, 1)])
def test_the_reward_of_a_task(trials: dict[str, dict], task: str, reward: float) -> None:
    trial = trials[task]
    assert not trial["exception_info"], trial["exception_info"]
    assert trial["verifier_result"]["rewards"]["reward"] == reward
