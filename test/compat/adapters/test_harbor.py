"""The environment for Harbor: jobs of Harbor's CLI with its oracle agent, and what an environment must do."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon
from harbor.environments.base import HealthcheckError
from harbor.models.task.config import EnvironmentConfig, HealthcheckConfig, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from forkd import AsyncClient, AsyncSandbox, Client, Sandbox
from forkd.errors import BuildFailed, ForkdError, InvalidArgumentError
from forkd.integrations.harbor import LABEL, LIST, MAX_OUTPUT, TRIAL, ForkdEnvironment

PATH = "forkd.integrations.harbor:ForkdEnvironment"
SLOW = 300  # seconds for an action that usually takes one, because the host may emulate the CPU
# Faked VMs share all directories but /srv, so Harbor's directories are links to it.
DIRECTORIES = "mkdir -p /srv/logs /srv/tests /srv/solution"
LINKS = f"{DIRECTORIES}; for d in logs tests solution; do rm -rf /$d; ln -s /srv/$d /$d; done"
OFFLINE, PUBLIC = NetworkPolicy(network_mode="no-network"), NetworkPolicy()
ALLOW = NetworkPolicy(network_mode="allowlist", allowed_hosts=["pypi.org", "*.pythonhosted.org"])

Make = Callable[..., ForkdEnvironment]


@pytest.fixture(scope="session")
def image(ready: str, daemon: Daemon) -> str:
    """The snapshot that Dockerfiles begin with."""
    return daemon.snapshot


@pytest.fixture(scope="session")
def ready(daemon: Daemon) -> str:
    """A snapshot for trials."""
    if daemon.real:
        return daemon.snapshot
    with Sandbox.create(daemon.snapshot) as sandbox:
        sandbox.commands.run(LINKS, user="root", check=True)
        return sandbox.branch()[0].tag


@pytest.fixture
def make(ready: str, tmp_path: Path) -> Make:
    """Makes environments of a task, with the snapshot for trials if the task has no files."""

    def made(*, policy: NetworkPolicy | None = None, files: dict[str, str] | None = None, **more: Any):
        where = tmp_path / "environment"
        where.mkdir(exist_ok=True)
        for name, content in (files or {}).items():
            (where / name).write_text(content)
        paths = TrialPaths(tmp_path / "trial")
        paths.mkdir()
        fields = {f: more.pop(f) for f in list(more) if f in EnvironmentConfig.model_fields}
        if not files:
            more = {"snapshot": ready} | more
        return ForkdEnvironment(
            environment_dir=where,
            environment_name="task",
            session_id=tmp_path.name,
            trial_paths=paths,
            task_env_config=EnvironmentConfig(**fields),
            network_policy=policy,
            logger=logging.getLogger("test"),
            **more,
        )

    return made


@pytest.fixture
async def environment(make: Make) -> AsyncIterator[ForkdEnvironment]:
    made = make(env={"TASK": "task"}, workdir="/srv/work dir", snapshot_per="command", max_snapshots=4)
    await made.start(False)
    yield made
    await made.stop(True)


async def left(environment: ForkdEnvironment) -> list[AsyncSandbox]:
    return await AsyncSandbox.list({LABEL: environment._id})


async def tags(environment: ForkdEnvironment) -> list[str]:
    snapshots = await AsyncClient.default().snapshots.list()
    return [s.tag for s in snapshots if (s.details.labels or {}).get(LABEL) == environment._id]


# Before a trial.


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("docker-compose.yaml", {"files": {"docker-compose.yaml": "services: {}", "Dockerfile": "FROM base"}}),
        ("mounts", {"mounts": [{"type": "bind", "source": "/etc", "target": "/mnt"}]}),
        ("snapshot_pre", {"snapshot_pre": "step"}),
        ("snapshot_per", {"snapshot_per": "moment"}),
        ("max_snapshots", {"max_snapshots": 0}),
        ("keep_snapshots", {"keep_snapshots": "yes"}),
        ("snapshot", {"snapshot": "../base"}),
        ("ttl", {"ttl": -1}),
        ("docker_image", {"docker_image": "base\nRUN true"}),
        ("auto.*mounts", {"auto_mounting": True}),
        ("GPU", {"gpus": 1}),
        ("windows", {"os": "windows"}),
        ("stream", {"stream": True}),
        ("IPv4", {"policy": NetworkPolicy(network_mode="allowlist", allowed_hosts=["10.0.0.1"])}),
        ("request", {"memory_mb": 128, "memory_enforcement_policy": "request"}),
        ("no environment definition", {"snapshot": None}),
    ],
)
def test_what_forkd_lacks_is_refused(make: Make, field: str, more: dict) -> None:
    with pytest.raises(Exception, match=field) as caught:
        make(**more)
    if isinstance(caught.value, InvalidArgumentError):
        assert caught.value.field == field


def test_a_verifier_with_its_own_image_does_not_use_the_snapshot(make: Make, ready: str) -> None:
    assert make()._snapshot == ready
    assert make(docker_image="verifier", enable_environment_dir_upload=False)._snapshot is None


async def test_preflight(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    ForkdEnvironment.preflight()
    monkeypatch.setenv("FORKD_TOKEN", "wrong")
    with pytest.raises(SystemExit, match="forkd"):
        ForkdEnvironment.preflight()


# A trial.


async def test_commands(environment: ForkdEnvironment, daemon: Daemon) -> None:
    got = await environment.exec(
        "echo out; echo err >&2; printf '\\377'; pwd; echo $TASK$MORE; exit 3", env={"MORE": "!"}
    )
    assert (got.stdout, got.stderr, got.return_code) == ("out\n\ufffd/srv/work dir\ntask!\n", "err\n", 3)
    got = await environment.exec("[[ -n $BASH ]] && pwd", cwd="/usr")
    assert (got.stdout, got.return_code) == ("/usr\n", 0)
    assert (await environment.exec("echo $BASH+", env={"PATH": "/none"})).stdout == "+\n", "sh, without bash"
    assert (await environment.exec("kill -9 $$")).return_code == 137
    got = await environment.exec("true", cwd="/no/such/directory")
    assert got.return_code == 126 and "/no/such/directory" in got.stderr
    got = await environment.exec("true", user="no-such-user")
    assert got.return_code == 126 and "no-such-user" in got.stderr
    got = await environment.exec("true", user=123456)
    assert got.return_code == 126 and "123456" in got.stderr
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        await environment.exec("sleep 600", timeout_sec=1)
    got = await environment.exec(f"head -c {MAX_OUTPUT + 1} /dev/zero")
    assert len(got.stdout) == MAX_OUTPUT and "discarded" in got.stderr and got.return_code == 0
    chunks: list[tuple[str, str]] = []

    async def heard(text: str, stream: str) -> None:
        chunks.append((stream, text))

    with environment.scoped_output_callback(heard):
        await environment.exec("echo one; echo two >&2")
    assert sorted(chunks) == [("stderr", "two\n"), ("stdout", "one\n")]


async def test_users(environment: ForkdEnvironment, daemon: Daemon) -> None:
    uid = (await environment.exec(f"id -u {daemon.user}")).stdout.strip()
    for user in daemon.user, int(uid), uid:
        assert (await environment.exec("id -u", user=user)).stdout.strip() == uid
    with environment.with_default_user(daemon.user):
        assert (await environment.exec("id -u")).stdout.strip() == uid
        assert (await environment.exec("id -u", user=0)).stdout.strip() == "0"


async def test_files(environment: ForkdEnvironment, daemon: Daemon, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "in").mkdir(parents=True)
    (tree / "in" / "data").write_bytes(b"\0\xff")
    (tree / "run").write_text("#!/bin/sh\necho ran\n")
    (tree / "run").chmod(0o755)
    await environment.upload_file(tree / "run", "/srv/a b/run")
    assert (await environment.exec("'/srv/a b/run'")).stdout == "ran\n"
    await environment.upload_dir(tree, "/srv/tree")
    assert (await environment.exec("/srv/tree/run")).stdout == "ran\n"
    assert await environment.is_dir("/srv/tree/in") and await environment.is_file("/srv/tree/in/data")
    await environment.download_file("/srv/tree/in/data", tmp_path / "data")
    assert (tmp_path / "data").read_bytes() == b"\0\xff"
    with pytest.raises(Exception, match="/srv/none"):
        await environment.download_file("/srv/none", tmp_path / "data")
    assert (tmp_path / "data").read_bytes() == b"\0\xff" and not list(tmp_path.glob(".forkd-*"))
    await environment.exec("mkfifo /srv/tree/fifo; ln -s /etc/passwd /srv/tree/out")
    await environment.download_dir("/srv/tree", tmp_path / "back")
    assert (tmp_path / "back/in/data").read_bytes() == b"\0\xff" and not (tmp_path / "back/out").is_file()
    await environment.download_dir_with_exclusions(
        source_dir="/srv/tree", target_dir=tmp_path / "some", exclude=["in", "out"]
    )
    assert (tmp_path / "some/run").exists() and not (tmp_path / "some/in").exists()


async def test_stop_deletes_the_sandbox(make: Make) -> None:
    environment = make()
    await environment.stop(True)  # not started yet
    await environment.start(False)
    [sandbox] = await left(environment)
    assert sandbox.labels[TRIAL] == environment.session_id
    assert (await sandbox.info()).expires_at_unix
    await environment.stop(True)
    assert not await left(environment)
    await environment.stop(True)
    with pytest.raises(RuntimeError, match="start it first"):
        await environment.exec("true")


async def test_stop_without_delete_keeps_a_suspended_sandbox(make: Make) -> None:
    environment = make()
    await environment.start(False)
    await environment.exec("echo kept >/srv/file")
    await environment.stop(False)
    [sandbox] = await left(environment)
    assert (await sandbox.info()).state == "suspended"
    await sandbox.kill()


async def test_a_failed_start_leaves_no_sandbox(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = make(workdir="/proc/none")
    with pytest.raises(RuntimeError, match="/proc/none"):
        await environment.start(False)
    assert not await left(environment)
    for field, more in {"cpus": {"cpus": 200}, "memory_mb": {"memory_mb": 1 << 20}}.items():
        with pytest.raises(InvalidArgumentError, match=field):
            await make(**more).start(False)
    environment, reached = make(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(environment, "_upload_environment_dir_after_start", hang)
    start = asyncio.create_task(environment.start(False))
    await reached.wait()
    assert await left(environment)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not await left(environment)


async def test_resources(make: Make) -> None:
    environment = make(cpus=0.5, memory_mb=128, memory_enforcement_policy="limit")
    await environment.start(False)
    limits = await environment.sandbox.limits.get()
    assert (limits.cpus, limits.memory_mib) == (0.5, 128)
    await environment.stop(True)
    environment = make(cpus=200, cpu_enforcement_policy="ignore", memory_mb=128)
    await environment.start(False)
    limits = await environment.sandbox.limits.get()
    assert (limits.cpus, limits.memory_mib) == (None, None)
    await environment.stop(True)


async def test_a_healthcheck(make: Make) -> None:
    check = HealthcheckConfig(command="[ -e /srv/healthy ]", interval_sec=0, retries=2, timeout_sec=SLOW)
    environment = make(healthcheck=check)
    await environment.start(False)
    with pytest.raises(HealthcheckError):
        await environment.run_healthcheck()
    await environment.exec("touch /srv/healthy")
    await environment.run_healthcheck()
    await environment.stop(True)


async def test_the_network(make: Make) -> None:
    async def network(environment: ForkdEnvironment) -> tuple:
        got = await environment.sandbox.network.get()
        return got.mode, got.allow or []

    environment = make(policy=OFFLINE, phase_network_policies=[ALLOW, PUBLIC])
    await environment.start(False)
    assert await network(environment) == ("none", [])
    await environment.set_network_policy(ALLOW)
    assert await network(environment) == ("allow", ALLOW.allowed_hosts)
    await environment.set_network_policy(PUBLIC)
    own = await network(environment)
    assert own[0] == "public"
    await environment.set_network_policy(OFFLINE)
    [narrow, _] = await environment.sandbox.branch()  # its policy is "none"
    await environment.stop(True)
    closed = make(snapshot=narrow.tag)
    await closed.start(False)
    assert await network(closed) == ("none", [])
    await closed.set_network_policy(ALLOW)
    assert await network(closed) == ("none", [])
    await closed.sandbox.network.set(mode="allow", allow=["pypi.org"])
    [some, _] = await closed.sandbox.branch()
    await closed.stop(True)
    partial = make(snapshot=some.tag, policy=NetworkPolicy(network_mode="allowlist", allowed_hosts=["pypi.org"]))
    await partial.start(False)
    with pytest.raises(InvalidArgumentError, match=r"allowed_hosts.*\*\.pythonhosted"):
        await partial.set_network_policy(ALLOW)
    assert await network(partial) == ("allow", ["pypi.org"])
    await partial.stop(True)
    for snapshot in some, narrow:
        await snapshot.delete(force=True)


async def test_snapshots_of_commands(environment: ForkdEnvironment, daemon: Daemon) -> None:
    with environment.scoped_exec_env({"IN": "setup"}):
        await environment.exec("echo installed >/srv/agent")
        await environment.exec("true")
    await environment.exec("true")  # Harbor's
    with environment.scoped_exec_env({}):
        for step in "one", "two", "three":
            with environment.scoped_exec_env({"STEP": step}):
                assert (await environment.exec("echo $STEP >>/srv/steps")).return_code == 0
    made = [(s.number, s.phase, s.moment) for s in environment.snapshots]
    agent = [(3, "run", "before"), (4, "run", "command")]  # max_snapshots is 4
    assert made == [(1, "setup", "before"), (2, "setup", "after"), *agent]
    assert environment.snapshots[2].command == "echo $STEP >>/srv/steps"
    saved = json.loads((environment.trial_paths.trial_dir / LIST).read_text())
    assert sorted(s["tag"] for s in saved) == sorted(await tags(environment))
    with pytest.raises(InvalidArgumentError, match="to"):
        await environment.rollback(5)
    await environment.rollback(4)
    assert (await environment.exec("cat /srv/steps")).stdout == "one\n"
    await environment.rollback(3)
    assert (await environment.exec("ls /srv")).stdout.split().count("steps") == 0
    assert (await environment.exec("cat /srv/agent")).stdout == "installed\n"
    await environment.rollback(saved[0]["tag"])
    assert (await environment.exec("[ -e /srv/agent ]")).return_code == 1
    await environment.stop(True)
    assert not await tags(environment) and not environment.snapshots
    assert json.loads((environment.trial_paths.trial_dir / LIST).read_text()) == []


async def test_a_snapshot_that_cannot_be_made(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, branch = make(snapshot_per="command", keep_snapshots=True), AsyncSandbox.branch
    await environment.start(False)

    async def fail(self: AsyncSandbox, **_: Any) -> None:
        raise ForkdError("the disk is full", code="disk_full")

    with environment.scoped_exec_env({}):
        monkeypatch.setattr(AsyncSandbox, "branch", fail)
        await environment.exec("true")
    with environment.scoped_exec_env({}):
        monkeypatch.setattr(AsyncSandbox, "branch", branch)
        await environment.exec("false")
    assert [(s.number, s.phase) for s in environment.snapshots] == [(2, "run")]
    await environment.stop(True)
    assert await tags(environment) == [environment.snapshots[0].tag], "keep_snapshots"
    await AsyncClient.default().snapshots.delete(environment.snapshots[0].tag)


# Builds.


async def test_trials_share_a_build(make: Make, image: str, daemon: Daemon) -> None:
    dockerfile = f"FROM {image}\nRUN {DIRECTORIES}\nCOPY given /srv/given\nWORKDIR /srv\nENV BUILT=yes\n"
    files, client = {"Dockerfile": dockerfile, "given": "42"}, AsyncClient.default()
    one, two = make(files=files), make(files=files)
    await asyncio.gather(one.start(False), two.start(False))
    tag = one.sandbox.snapshot_tag
    assert two.sandbox.snapshot_tag == tag and (await client.snapshots.info(tag)).built
    built = (await client.snapshots.info(tag)).created_at_unix
    for environment in one, two:
        assert (await environment.exec("cat /srv/given")).stdout == "42"
        if daemon.real:  # faked ones do not keep such settings
            assert (await environment.exec("pwd; echo $BUILT")).stdout == "/srv\nyes\n"
        await environment.stop(True)
    again = make(files=files)
    await again.start(True)
    assert again.sandbox.snapshot_tag == tag and (await client.snapshots.info(tag)).created_at_unix == built
    await again.stop(True)
    other = make(files=files | {"given": "43"})
    await other.start(False)
    changed = other.sandbox.snapshot_tag
    assert changed != tag
    await other.stop(True)
    for made in tag, changed:
        await client.snapshots.delete(made)


async def test_a_branch_with_the_tag_of_a_build_is_not_used(make: Make, image: str) -> None:
    """Another client of the daemon may have made this branch."""
    files, client = {"Dockerfile": f"FROM {image}\nRUN {DIRECTORIES}\nWORKDIR /srv\n"}, AsyncClient.default()
    first = make(files=files)
    await first.start(False)
    tag = first.sandbox.snapshot_tag
    await first.stop(True)
    await client.snapshots.delete(tag)
    async with await AsyncSandbox.create(image) as sandbox:
        await sandbox.commands.run("echo foreign >/srv/foreign", check=True)
        await sandbox.branch(tag=tag)
    second = make(files=files)
    await second.start(False)
    assert (await second.exec("[ -e /srv/foreign ]")).return_code == 1
    await second.stop(True)
    await client.snapshots.delete(tag)


async def test_an_image_by_its_name(make: Make, image: str, tmp_path: Path) -> None:
    """The name of a snapshot means that snapshot, as in FROM. Files of the task without a Dockerfile are uploaded."""
    environment = make(docker_image=image, snapshot=None, workdir="/srv/task")
    (environment.environment_dir / "given").write_text("42")
    await environment.start(False)
    assert (await environment.exec("cat given")).stdout == "42"
    tag = environment.sandbox.snapshot_tag
    await environment.stop(True)
    await AsyncClient.default().snapshots.delete(tag)


async def test_a_build_that_fails(make: Make, image: str) -> None:
    environment = make(files={"Dockerfile": f"FROM {image}\nRUN echo why; exit 7\n"})
    with pytest.raises(BuildFailed, match="why"):
        await environment.start(False)
    assert not await left(environment)


# Jobs of Harbor's command line.

TASK = """
schema_version = "1.0"
{steps}
[verifier]
timeout_sec = 600.0
[agent]
timeout_sec = 600.0
[environment]
build_timeout_sec = 1200.0
network_mode = "no-network"
workdir = "/srv/task"
cpus = 1
"""
STEPS = '[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n'
TEST = """#!/bin/bash
mkdir -p /logs/verifier
[ "$(cat /srv/task/answer)" = "{answer}" ] && reward=1 || reward=0
echo $reward >/logs/verifier/reward.txt
"""
SOLUTION = "tr a-z A-Z <question >>answer"


def write(where: Path, files: dict[str, str]) -> None:
    for file, content in files.items():
        path = where / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)


@pytest.fixture(scope="module")
def job(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a job that has tried each task once."""
    there = tmp_path_factory.mktemp("harbor")
    dockerfile = f"FROM {image}\nRUN {DIRECTORIES} && mkdir -p /srv/task && echo word >/srv/task/question\n"
    dockerfile += "WORKDIR /srv/task\n"
    for name, solution in {"capitals": SOLUTION, "wrong": "cp question answer"}.items():
        files = {"task.toml": TASK.format(steps=""), "instruction.md": "Write.", "environment/Dockerfile": dockerfile}
        files |= {"solution/solve.sh": f"#!/bin/bash\n{solution}\n", "tests/test.sh": TEST.format(answer="WORD")}
        write(there / "tasks" / name, files)
    files = {"task.toml": TASK.format(steps=STEPS), "environment/Dockerfile": dockerfile}
    for step, answer in {"first": "WORD", "second": "WORD\nWORD"}.items():
        files[f"steps/{step}/instruction.md"] = "Write."
        files[f"steps/{step}/solution/solve.sh"] = f"#!/bin/bash\n{SOLUTION}\n"
        files[f"steps/{step}/tests/test.sh"] = TEST.format(answer=answer)
    write(there / "tasks" / "steps", files)
    harbor = str(Path(sys.executable).with_name("harbor"))
    options = ["-a", "oracle", "-e", PATH, "--ek", "snapshot_per=step", "--ek", "keep_snapshots=true", "-n", "2", "-y"]
    command = [harbor, "run", "-p", str(there / "tasks"), "-o", str(there), "--job-name", "job", "-q", *options]
    got = subprocess.run(command, cwd=there, capture_output=True, text=True)
    assert len(list(there.glob("job/*/result.json"))) == 3, got.stdout + got.stderr
    yield there / "job"
    for snapshot in Client.default().snapshots.list():
        labels = snapshot.details.labels or {}
        if TRIAL in labels or snapshot.tag.startswith(
            tuple(f"harbor-{name}-" for name in ("capitals", "wrong", "steps"))
        ):
            snapshot.delete(force=True)


def trial(job: Path, task: str) -> tuple[dict, Path]:
    for path in job.glob("*/result.json"):
        result = json.loads(path.read_text())
        if Path(result["task_name"]).name == task:
            return result, path.parent
    raise AssertionError(task)


@pytest.mark.parametrize(("task", "reward"), [("capitals", 1), ("wrong", 0), ("steps", 1)])
def test_the_reward_of_a_task(job: Path, task: str, reward: float) -> None:
    result, _ = trial(job, task)
    assert not result["exception_info"], result["exception_info"]
    assert result["verifier_result"]["rewards"]["reward"] == reward


def test_a_job_leaves_no_sandbox(job: Path) -> None:
    names = {json.loads(p.read_text())["trial_name"] for p in job.glob("*/result.json")}
    assert not [s for s in Sandbox.list({TRIAL: None}) if any(s.labels[TRIAL].startswith(name) for name in names)]


def test_snapshots_of_steps(job: Path) -> None:
    """After the trial, a fork of each snapshot continues from the moment of that snapshot."""
    answers = {}
    for task in "capitals", "steps":
        for saved in json.loads((trial(job, task)[1] / LIST).read_text()):
            with Sandbox.create(saved["tag"]) as sandbox:
                got = sandbox.commands.run("cat /srv/task/answer", timeout=SLOW)
                assert sandbox.network.get().mode == "none", "the task has no network"
            answers[task, saved["phase"], saved["moment"]] = got.stdout.split() if got.ok else None
    assert answers == {
        ("capitals", "run", "before"): None,
        ("capitals", "run", "after"): ["WORD"],
        ("steps", "first", "before"): None,
        ("steps", "first", "after"): ["WORD"],
        ("steps", "second", "before"): ["WORD"],
        ("steps", "second", "after"): ["WORD", "WORD"],
    }
