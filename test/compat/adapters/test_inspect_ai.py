"""The sandbox environment for Inspect AI: its self check, an evaluation, and what forkd adds."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from conftest import Daemon
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import basic_agent, system_message
from inspect_ai.tool import bash
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size, override_max_read_file_size
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from forkd import AsyncSandbox, InvalidArgumentError
from forkd.integrations.inspect_ai import _WRITE, LABEL, ForkdConfig, ForkdSandboxEnvironment


def config(daemon: Daemon) -> ForkdConfig:
    # The checks expect that some files cannot be read or written. Root could read and write all of them.
    return ForkdConfig(
        snapshot=daemon.snapshot,
        env=daemon.env,
        user=daemon.user,
        working_dir="/tmp/inspect-self-check",
    )


@pytest.fixture(scope="module")
async def environment(daemon: Daemon) -> AsyncIterator[ForkdSandboxEnvironment]:
    kind = registry_find_sandboxenv("forkd")  # found by the entry point of this package
    made = await kind.sample_init("self check", config(daemon), {})
    yield made["default"].as_type(ForkdSandboxEnvironment)
    await kind.sample_cleanup("self check", config(daemon), made, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, environment: ForkdSandboxEnvironment) -> ForkdSandboxEnvironment:
    if "COMPAT_EMULATED" in os.environ and request.node.name == "test_exec_as_user":
        reason = "gives adduser 10 s: an emulated host may take longer"
        request.applymarker(pytest.mark.xfail(raises=TimeoutError, strict=False, reason=reason))
    return environment


async def test_output_above_the_limit_ends_the_command(
    environment: ForkdSandboxEnvironment,
) -> None:
    with (
        override_max_exec_output_size(1000),
        pytest.raises(OutputLimitExceededError) as caught,
    ):
        await environment.exec(["sh", "-c", "while :; do echo 0123456789; done"])
    assert len(caught.value.truncated_output) == 1000


async def test_a_missing_program_and_directory_are_results(
    environment: ForkdSandboxEnvironment,
) -> None:
    got = await environment.exec(["no-such-program"])
    assert (got.success, got.returncode) == (
        False,
        127,
    ) and "no-such-program" in got.stderr
    got = await environment.exec(["pwd"], cwd="/no/such/directory")
    assert not got.success and "/no/such/directory" in got.stderr


async def test_input_that_is_not_taken(environment: ForkdSandboxEnvironment) -> None:
    assert (await environment.exec(["true"], input=b"x" * (1 << 20))).success


async def test_a_sandbox_that_is_gone(daemon: Daemon) -> None:
    made = await ForkdSandboxEnvironment.sample_init("gone", config(daemon), {})
    gone = made["default"].as_type(ForkdSandboxEnvironment)
    assert gone.sandbox.id in (await gone.connection(user="root")).command
    await gone.sandbox.kill()
    with pytest.raises(SandboxUnavailableError):
        await gone.exec(["true"])
    with pytest.raises(ConnectionError):
        await gone.connection()


async def test_a_task_kills_what_its_samples_have_left(daemon: Daemon) -> None:
    for task in "one", "another":
        made = await ForkdSandboxEnvironment.sample_init(task, config(daemon), {})
        await ForkdSandboxEnvironment.sample_cleanup(task, config(daemon), made, True)
    left = await AsyncSandbox.list({LABEL: None})
    await ForkdSandboxEnvironment.task_cleanup("another", config(daemon), True)
    assert len(await AsyncSandbox.list({LABEL: None})) == len(left) - 1
    await ForkdSandboxEnvironment.task_cleanup("one", config(daemon), True)


async def test_without_a_snapshot_the_error_says_how() -> None:
    with pytest.raises(InvalidArgumentError, match="ForkdConfig"):
        await ForkdSandboxEnvironment.sample_init("none", None, {})


async def test_branch_rollback_fork(daemon: Daemon, real: None) -> None:
    made = await ForkdSandboxEnvironment.sample_init("branch", config(daemon), {})
    machine = made["default"].as_type(ForkdSandboxEnvironment)
    await machine.write_file("state", "one")
    before = await machine.branch()
    await machine.write_file("state", "two")
    [child] = await machine.fork()
    await machine.rollback(before)
    assert await machine.read_file("state") == "one" and await child.read_file("state") == "two"
    await child.sandbox.kill()
    await ForkdSandboxEnvironment.sample_cleanup("branch", config(daemon), made, False)
    await before.delete()


async def test_an_evaluation(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted model solves a task with a tool. It does so in two epochs, in a sandbox with the sample's files."""
    before = [b.id for b in await AsyncSandbox.list({LABEL: None})]
    answers = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "cat given.txt; echo $CUSTOM"}),
        ModelOutput.for_tool_call("mockllm/model", "submit", {"answer": "the number is 42"}),
    ]
    spec = SandboxEnvironmentSpec(
        "forkd",
        config(daemon).model_copy(update={"env": {**daemon.env, "CUSTOM": "set"}}),
    )
    task = Task(
        dataset=[
            Sample(
                input="Read given.txt",
                target="42",
                files={"given.txt": "42"},
                setup="test -f given.txt",
            )
        ],
        solver=basic_agent(init=system_message("Solve it."), tools=[bash(timeout=120)]),
        scorer=includes(),
        sandbox=spec,
        epochs=2,
    )
    model = get_model("mockllm/model", custom_outputs=answers * 2)
    # The tokenizer would be downloaded from the internet.
    monkeypatch.setattr(model.api, "count_text_tokens", AsyncMock(return_value=1))
    [log] = await eval_async(task, model=model, log_dir=str(tmp_path), max_samples=1)
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1
    for sample in log.samples:
        assert [m.text.strip() for m in sample.messages if m.role == "tool"][:1] == ["42set"]
    assert [b.id for b in await AsyncSandbox.list({LABEL: None})] == before


@asynccontextmanager
async def lying(daemon: Daemon, program: str, text: str) -> AsyncIterator[tuple[ForkdSandboxEnvironment, str]]:
    """An environment whose commands find a program of the guest in place of a usual one, and its directory."""
    where = f"/tmp/inspect-{uuid.uuid4().hex}"
    spec = config(daemon).model_copy(
        update={"env": {"PATH": f"{where}:{daemon.env.get('PATH', '/usr/bin:/bin')}"}, "working_dir": where + "/work"}
    )
    made = await ForkdSandboxEnvironment.sample_init("lying", spec, {})
    machine = made["default"].as_type(ForkdSandboxEnvironment)
    write = 'printf %s "$1" >"$2" && chmod 755 "$2"'
    program = f"{where}/{program}"
    script = ["/bin/sh", "-c", write, "sh", f"#!/bin/sh\nwhere={where}\n{text}\n", program]
    assert (await machine.exec(script, user="root")).success
    yield machine, where
    await machine.exec(["rm", "-rf", where], cwd="/", user="root")
    await ForkdSandboxEnvironment.sample_cleanup("lying", spec, made, False)


async def test_a_large_file_whose_size_the_guest_denies(daemon: Daemon) -> None:
    async with lying(daemon, "stat", "echo 1") as (machine, _):
        await machine.write_file("large", "x" * 5000)
        with override_max_read_file_size(1000), pytest.raises(OutputLimitExceededError):
            await machine.read_file("large")
        assert len(await machine.read_file("large")) == 5000


async def test_a_link_that_appears_after_the_check(daemon: Daemon) -> None:
    """mkdir runs between the look for the file and the write."""
    async with lying(daemon, "mkdir", '/bin/mkdir "$@" && ln -s $where/secret $where/work/new/file') as (
        machine,
        where,
    ):
        secret = ["/bin/sh", "-c", f"umask 077; echo secret >{where}/secret"]
        assert (await machine.exec(secret, user="root")).success
        with pytest.raises(OSError):
            await machine.write_file("new/file", "changed")
        assert (await machine.exec(["cat", where + "/secret"], user="root")).stdout == "secret\n"
        with pytest.raises(PermissionError):
            await machine.read_file("new/file")


async def test_a_write_that_ends_early_changes_nothing(environment: ForkdSandboxEnvironment) -> None:
    await environment.write_file("kept", "kept")
    with pytest.raises(OSError):
        await environment._file(_WRITE, environment._path("kept"), "100", content=b"part")
    assert await environment.read_file("kept") == "kept"
