"""The examples for agents and evaluations (examples/NAME/demo.py), each with the framework that it uses, from PyPI. If
an example needs a model, a script plays it. Each program checks its own results, and exits with 1 if one is wrong. Its
output must be that of its README, except for numbers that differ in each run.

Sandboxes are forked from $COMPAT_TAG. The group examples@rig has faked VMs instead, each with its own /srv, which
branches keep. CrewAI and Swarm need an older package of OpenAI than others do, so their examples have groups of their
own: examples@crewai and examples@rig-crewai."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version

import rig
from report import AGE, TAG, NotApplicable, Report, Tally, want

FAKED = AGE.startswith("rig")
EXAMPLES = {  # and their options
    "autogen-branch": ["--dry-run"],
    "best-of-n-judge": [],
    "ci-parallel-pytest": ["--dry-run"],
    "coding-agent-fork": ["--dry-run"],
    "crewai-fanout": ["--dry-run"],
    "langgraph-react": ["--dry-run"],
    "mcp-agent": ["--dry-run"],
    "mcts": [],
    "openai-agents": ["--dry-run"],
    "openai-swarm": ["--dry-run"],
    "patch-evaluation": [],
    "rl-environment": [],
    "speculative-agent": ["--dry-run"],
    "tree-search": [],
}
PACKAGES = {  # the frameworks of examples
    "autogen-branch": "autogen-agentchat",
    "crewai-fanout": "crewai",
    "langgraph-react": "langgraph",
    "mcp-agent": "mcp",
    "openai-agents": "openai-agents",
    "openai-swarm": "openai-swarm",
}
CREWAI = AGE.endswith("crewai")
CHOSEN = [name for name in EXAMPLES if (name in ("crewai-fanout", "openai-swarm")) == CREWAI]
ISOLATED = "coding-agent-fork"  # this example must notice it if sandboxes share their files
VARIES = re.compile(r"[0-9]+(\.[0-9]+)?(?= ms| s$| per second)|(?<=pause_ms=)[0-9.]+|(?<= has )[0-9]+(?= tools)", re.M)
r = Report("examples")


@contextlib.contextmanager
def daemon(*options: str) -> Iterator[tuple[dict[str, str], str]]:
    """The environment that names the daemon, and the snapshot to fork from."""
    if not FAKED:
        yield dict(os.environ), TAG
        return
    with rig.daemon(program, *options) as said:
        yield {**os.environ, "FORKD_URL": said["url"], "FORKD_TOKEN": said["token"]}, said["snapshot"]


def run(name: str, env: dict[str, str], snapshot: str) -> subprocess.CompletedProcess[str]:
    options = [*EXAMPLES[name], "--snapshot", snapshot]
    if name == "ci-parallel-pytest" and FAKED:
        options += ["--python", sys.executable]
    if name == "mcp-agent" and FAKED:
        options += ["--http"]
    if name == "patch-evaluation" and FAKED:
        options += ["--timeout", "15"]  # one patch never ends
    return subprocess.run(
        [sys.executable, "demo.py", *options],
        cwd=f"examples/{name}",
        env={**env, "PYTHONPATH": os.path.abspath("sdk/python/src"), "HOME": scratch},
        capture_output=True,
        text=True,
        timeout=1200,
    )


def plain(output: str) -> str:
    """An output without what differs in each run."""
    return VARIES.sub("N", output).strip()


def example(name: str, env: dict[str, str], snapshot: str) -> None:
    if name == "ci-parallel-pytest" and not FAKED:
        snapshot = "coding-agent"
        if snapshot not in subprocess.run(["forkd", "images", "-q"], capture_output=True, text=True).stdout.split():
            raise NotApplicable("it needs a snapshot of the recipe coding-agent")
    got = run(name, env, snapshot)
    want(got.returncode == 0, f"exit {got.returncode}\n{got.stdout}{got.stderr}")
    with open(f"examples/{name}/README.md") as f:
        documented = re.findall(r"```text\n(.*?)```", f.read(), re.S)[-1]
    want(plain(got.stdout) == plain(documented), f"it printed\n{got.stdout}\nbut its README has\n{documented}")


def notices_shared_files() -> None:
    with daemon() as (env, snapshot):
        got = run(ISOLATED, env, snapshot)
    want(got.returncode == 1 and "FAILED" in got.stderr, f"exit {got.returncode}\n{got.stdout}{got.stderr}")


def complete() -> None:
    there = {d for d in os.listdir("examples") if os.path.exists(f"examples/{d}/demo.py")}
    want(there == set(EXAMPLES), f"examples has {sorted(there)}")


with tempfile.TemporaryDirectory() as scratch:
    r.case("all examples are run", complete)
    program = rig.build(scratch + "/rigd") if FAKED else ""
    if FAKED and not CREWAI:
        r.case(f"{ISOLATED} notices shared files", notices_shared_files)
    with daemon("-private") as (env, snapshot):
        for name in CHOSEN:
            r.case(name, partial(example, name, env, snapshot))
            outcome = r.cases[-1]["outcome"]
            if name in PACKAGES and outcome != "not_applicable":
                tally = Tally()
                tally.add(outcome)
                r.tool(name, version(PACKAGES[name]), tally)
r.finish()
