"""The programs of README.md and of examples run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkd import Client

SDK = Path(__file__).resolve().parent.parent
BLOCKS = [
    block
    for readme in (SDK / "README.md", SDK.parent.parent / "README.md")
    for block in re.findall(r"```python\n(.*?)```", readme.read_text(), re.S)
]
EXAMPLES = {
    "best_of_n": "fix 0 passes 3 of 3 checks: s/len(x)/len(xs)/\n",
    "undo": "step one\nstep two\n'exit 1' failed: back at the branch\nstep three\n",
    "parallel_tests": "test_a.py: passed\ntest_b.py: passed\ntest_c.py: failed: AssertionError\n",
    "notebook": "shown: text, png\na red dot PNG True\n",
    "watch_files": "changed: one, two\n",
    "port_preview": "hello from the sandbox\na URL for ten minutes: http True\n",
    "pool": "506\n",
    "streaming": "line 1\nline 2\nline 3\nTYPED LATER\ngot yes\n",
    "workspace": "at work\nsuspended\nrunning\n['example-workspace']\n",
    "network_policy": "none\nallow True 0\nthe child: none\n",
}


@pytest.fixture(scope="module", autouse=True)
def snapshot(rig: Any) -> Iterator[None]:
    """The snapshot that the programs use."""
    with Client(rig.url, token=rig.token) as client:
        snap = client.build(dockerfile_text=f"FROM {rig.snapshot}\nENV MADE=here\n", tag="python-numpy")
        yield
        snap.delete(force=True)


def ran(rig: Any, program: str, directory: Path) -> str:
    python = os.environ.get("FORKD_README_PYTHON", sys.executable)  # its environment has only this package
    env = {**os.environ, "FORKD_URL": rig.url, "FORKD_TOKEN": rig.token}
    got = subprocess.run(
        [python, "-W", "error", "-c", program], env=env, cwd=directory, capture_output=True, text=True, timeout=120
    )
    assert got.returncode == 0, got.stderr
    return got.stdout


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme(rig: Any, tmp_path: Path, number: int) -> None:
    said = ran(rig, BLOCKS[number], tmp_path)
    for comment in re.findall(r"print\(.*\) +# (\S+)$", BLOCKS[number], re.M):
        if comment not in ("an", "a"):
            assert comment in said.splitlines(), said


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(rig: Any, tmp_path: Path, name: str) -> None:
    assert ran(rig, (SDK / f"examples/{name}.py").read_text(), tmp_path) == EXAMPLES[name]


def test_there_are_ten_examples_and_all_are_run() -> None:
    assert {p.stem for p in (SDK / "examples").glob("*.py")} == set(EXAMPLES) and len(EXAMPLES) == 10


def test_readme_names_what_there_is() -> None:
    """The table lists every public method, and nothing else."""
    import forkd

    readme = (SDK / "README.md").read_text()
    table = readme[readme.index("## Overview") : readme.index("* **Bytes first.**")]
    names = set(re.findall(r"`(?:\w+\.)*(\w+)`", table))
    for cls in (forkd.Client, forkd.Sandbox):
        public = {n for n, v in vars(cls).items() if not n.startswith("_") and callable(getattr(cls, n))}
        assert public - names <= {"close", "default", "eval"}, cls
