"""The environment for mini-swe-agent: an agent with a scripted model, and what an environment must do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Daemon
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from forkd.integrations.minisweagent import ForkdEnvironment

CLASS = "forkd.integrations.minisweagent.ForkdEnvironment"


@pytest.fixture
def environment(daemon: Daemon) -> Iterator[ForkdEnvironment]:
    made = get_environment(
        {
            "environment_class": CLASS,
            "snapshot": daemon.snapshot,
            "cwd": "/tmp",
            "timeout": 120,
        }
    )
    yield made
    made.cleanup()


def test_results(environment: ForkdEnvironment) -> None:
    got = environment.execute({"command": "echo out; echo err >&2; echo last; printf '\\377'; exit 3"})
    assert got == {
        "output": "out\nerr\nlast\n\ufffd",
        "returncode": 3,
        "exception_info": "",
    }
    assert environment.execute({"command": "pwd"})["output"] == "/tmp\n"
    assert environment.execute({"command": "pwd"}, "/usr")["output"] == "/usr\n"
    assert environment.execute({"command": "cat"})["output"] == "", "no input"


def test_a_timeout_is_a_result(environment: ForkdEnvironment) -> None:
    got = environment.execute({"command": "echo before; sleep 60"}, timeout=5)
    assert (got["output"], got["returncode"]) == ("before\n", -1)
    assert "timed out after 5 seconds" in got["exception_info"] and got["extra"]["exception_type"] == "TimeoutExpired"


def test_an_error_is_a_result(environment: ForkdEnvironment) -> None:
    got = environment.execute({"command": "true"}, "/no/such/directory")
    assert got["returncode"] == -1 and "/no/such/directory" in got["exception_info"]


def test_submission(environment: ForkdEnvironment) -> None:
    with pytest.raises(Submitted) as caught:
        environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo patch"})
    assert caught.value.messages[0]["extra"]["submission"] == "patch\n"


def test_what_prompts_say(environment: ForkdEnvironment) -> None:
    variables = environment.get_template_vars(task="x")
    assert variables["system"] == "Linux" and variables["cwd"] == "/tmp" and variables["task"] == "x"
    assert environment.serialize()["info"]["config"]["environment_type"] == CLASS


def test_an_agent(environment: ForkdEnvironment, tmp_path: Path) -> None:
    commands = [
        "echo 42 >answer",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer",
    ]
    model = DeterministicModel(outputs=[make_output(f"step {c}", [{"command": c}]) for c in commands])
    config = get_config_from_spec("default.yaml")["agent"] | {"output_path": tmp_path / "trajectory.json"}
    agent = DefaultAgent(model, environment, **{k: v for k, v in config.items() if k != "mode"})
    assert agent.run("find the answer") == {
        "exit_status": "Submitted",
        "submission": "42\n",
    }


def test_forks_have_a_life_and_cleanup_deletes_branches(daemon: Daemon) -> None:
    environment = ForkdEnvironment(snapshot=daemon.snapshot, cwd="/tmp", timeout=120, branches=True, ttl=900)
    for _ in range(3):
        environment.execute({"command": "true"})
    saved = [s.tag for s in environment.branches]
    [now], [then] = environment.fork(), environment.fork(2)
    for fork in now, then:
        assert 0 < fork.sandbox.info().expires_at_unix - time.time() <= 901
    environment.rollback(2)
    now.cleanup()
    then.cleanup()
    environment.cleanup()
    assert len(saved) == 3 and not {s.tag for s in environment.sandbox.client.snapshots.list()} & set(saved)


def test_cleanup_keeps_branches_in_use(daemon: Daemon) -> None:
    environment = ForkdEnvironment(snapshot=daemon.snapshot, cwd="/tmp", timeout=120, branches=True)
    environment.execute({"command": "true"})
    [branch], [fork] = environment.branches, environment.fork(1)
    environment.cleanup()
    assert fork.execute({"command": "echo on"})["output"] == "on\n"
    fork.cleanup()
    branch.delete()


def test_branches(daemon: Daemon, real: None) -> None:
    environment = ForkdEnvironment(snapshot=daemon.snapshot, cwd="/tmp", timeout=120, branches=True)
    for name in "one", "two", "three":
        environment.execute({"command": f"echo {name} >>steps"})
    [other] = environment.fork(3)
    environment.rollback(2)
    assert environment.execute({"command": "cat steps"})["output"] == "one\n" and len(environment.branches) == 3
    assert other.execute({"command": "cat steps"})["output"] == "one\ntwo\n"
    other.cleanup()
    environment.cleanup()
    for snapshot in {s.tag: s for s in [*environment.branches, *other.branches]}.values():
        snapshot.delete(force=True)
