"""An environment for Harbor (Python 3.12, pip install 'forkd[harbor]'), which is chosen by its import path:

    harbor run -p tasks -a oracle -e forkd.integrations.harbor:ForkdEnvironment --ek snapshot_per=step

Each trial runs in a sandbox of its own. The sandbox is forked from a snapshot that is built once from the task's
Dockerfile or docker_image, or from the snapshot that the keyword argument snapshot names.

With snapshot_per="step", the machine is saved before and after the agent's setup and each step of a task. A task
without steps counts as one step. With snapshot_per="command", the machine is also saved before every command of the
agent, except in the setup. An agent can go back:

    await environment.rollback(environment.snapshots[-1].number)

The file forkd-snapshots.json in the trial's directory lists the snapshots. The method stop deletes them with
the sandbox, unless keep_snapshots or Harbor's --no-delete is set. If they are kept, `forkd fork TAG` continues from a
step.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import contextvars
import hashlib
import inspect
import json
import math
import os
import re
import shlex
import stat
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from weakref import WeakValueDictionary

from harbor.environments.base import BaseEnvironment, ExecResult, OutputCallback, OutputStream
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import (
    COMPOSE_FILE_NAME,
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode

from .. import _args
from .._async._client import AsyncClient
from .._async._sandbox import AsyncSandbox
from .._codes import BadRequestError, SnapshotNotFoundError
from .._errors import ForkdError, InvalidArgumentError
from .._sync._client import Client
from .._wire import BuildOutput, Limits, Network, SnapshotInfoDetail
from ._capture import Capture

LABEL, TRIAL = "harbor-environment", "harbor-trial"
"""The labels of all sandboxes and snapshots of an environment. The value of the first is unique to the
environment, and that of the second is the name of the trial."""
LIST = "forkd-snapshots.json"
"""The file of a trial's directory that lists the snapshots."""
MAX_OUTPUT = 16 << 20  # bytes of each output of a command; more is discarded
MAX_DOWNLOAD = 64 << 30  # bytes of a file
MAX_SNAPSHOTS = 1000
MAX_PASSWD = 1 << 20  # bytes
# Tasks expect bash, which some images lack.
_SHELL = ("/bin/sh", "-c", 'command -v bash >/dev/null && exec bash -c "$1"; exec /bin/sh -c "$1"', "sh")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


@dataclass(frozen=True)
class StepSnapshot:
    """The machine at a moment of a trial."""

    number: int
    """From 1, in the order of the snapshots."""
    tag: str
    phase: str
    """The name of a step, "run" in a task without steps, or "setup" before the first step."""
    moment: Literal["before", "after", "command"]
    """Before or after the phase, or before a command in the phase."""
    command: str | None = None
    """The first 200 characters of the command that follows."""


class _Phase:
    """The setup of an agent, or a run of it."""

    def __init__(self, name: str) -> None:
        self.name, self.begun = name, False


class ForkdEnvironment(BaseEnvironment):
    """The sandbox of a trial."""

    _building: ClassVar[WeakValueDictionary[tuple[int, str], asyncio.Lock]] = WeakValueDictionary()

    def __init__(
        self,
        *args: Any,
        snapshot: str | None = None,
        ttl: float = 24 * 3600,
        snapshot_per: Literal["step", "command"] | None = None,
        max_snapshots: int = 100,
        keep_snapshots: bool = False,
        **kwargs: Any,
    ) -> None:
        """snapshot is the tag of a snapshot to fork from, in place of the task's image. A separate verifier with an
        image of its own does not use it. ttl is the number of seconds after which the daemon deletes the sandbox if
        stop was not called. With snapshot_per, the machine is saved at steps or commands, at most max_snapshots times.
        Harbor gives the other arguments."""
        if unknown := kwargs.keys() - inspect.signature(BaseEnvironment.__init__).parameters.keys():
            raise InvalidArgumentError(f"{min(unknown)}: there is no such keyword argument", field=min(unknown))
        _args.one_of("snapshot_per", snapshot_per, ("step", "command"))
        _args.whole("max_snapshots", max_snapshots, 1, MAX_SNAPSHOTS)
        if not isinstance(keep_snapshots, bool):
            raise _args.wrong("keep_snapshots", keep_snapshots, "True or False")
        own_image = not kwargs.get("enable_environment_dir_upload", True)  # that of a separate verifier
        self._snapshot = None if snapshot is None or own_image else _args.name("snapshot", snapshot)
        super().__init__(*args, **kwargs)
        if self._host_mounts:
            raise InvalidArgumentError("mounts: a sandbox cannot mount files of this host", field="mounts")
        self._ttl, self._per = _args.life("ttl", ttl), snapshot_per
        self._most, self._keep = max_snapshots, keep_snapshots
        name = re.sub(r"[^A-Za-z0-9._-]", "-", self.session_id).lstrip(".-")[:80]
        self._id = f"{name or 'trial'}-{uuid.uuid4().hex[:12]}"
        self._client: AsyncClient | None = None
        self._sandbox: AsyncSandbox | None = None
        self._own = Network(mode="none")  # the policy that the snapshot gave the sandbox; Harbor can only narrow it
        self.snapshots: list[StepSnapshot] = []
        """The snapshots of this trial so far, in their order."""
        self._saves = 0  # including failed ones
        self._saving = asyncio.Lock()
        self._phase: contextvars.ContextVar[_Phase | None] = contextvars.ContextVar("phase", default=None)
        self._phases = 0
        self._ended: _Phase | None = None  # a phase whose "after" has not been saved
        self._steps: set[str] = set()  # steps that have begun

    # Methods that only forkd's environment has.

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox of a started environment."""
        if self._sandbox is None:
            raise RuntimeError("the environment has no sandbox: start it first")
        return self._sandbox

    async def rollback(self, to: int | str) -> None:
        """Rolls the files, processes and memory of the sandbox back to a snapshot, given by its number or its tag. The
        sandbox keeps its id and its present network policy."""
        found = next((s.tag for s in self.snapshots if to in (s.number, s.tag)), None)
        if found is None:
            raise InvalidArgumentError(f"to: {to!r}: this trial has no such snapshot", field="to")
        await self.sandbox.rollback(found)

    # What Harbor asks before a trial.

    @staticmethod
    def type() -> str:
        """The name of this kind of environment."""
        return "forkd"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What Harbor may ask for. Addresses in an allowlist could open private networks, so they are refused."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """CPUs and memory are limits: forkd reserves nothing."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    @classmethod
    def preflight(cls) -> None:
        """Ends the program if no daemon answers."""
        try:
            with Client() as client:
                client.version()
        except ForkdError as e:
            raise SystemExit(f"forkd: {e}") from e

    def _validate_definition(self) -> None:
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise InvalidArgumentError(
                f"{COMPOSE_FILE_NAME}: {self.environment_dir}: a sandbox is one machine without compose services",
                field=COMPOSE_FILE_NAME,
            )
        image = self.task_env_config.docker_image
        if image is not None and not _IMAGE.fullmatch(image):
            raise _args.wrong("docker_image", image, "the name of an image")
        if self._snapshot is None:
            require_agent_environment_definition(self.environment_dir, docker_image=image)

    # The life of the sandbox.

    async def start(self, force_build: bool) -> None:
        """Builds the snapshot unless it exists, and forks the sandbox. After an error, no sandbox remains."""
        self._client = AsyncClient.default()
        try:
            await self._start(self._client, force_build)
        except BaseException:
            await self._kill(self._client)
            raise

    async def _start(self, client: AsyncClient, force_build: bool) -> None:
        tag = self._snapshot or await self._built(client, force_build)
        size = await client.snapshots.info(tag)
        self._check_size(size)
        policies = [self.network_policy, *self._phase_network_policies]
        offline = all(policy.network_mode == NetworkMode.NO_NETWORK for policy in policies)
        self._sandbox = await AsyncSandbox.create(
            tag,
            client=client,
            labels={LABEL: self._id, TRIAL: self.session_id[:256]},
            network="none" if offline else None,
            ttl=self._ttl,
        )
        own = await self._sandbox.network.get()
        self._own = Network(
            mode=own.mode,  # type: ignore[arg-type]  # the daemon's own word
            allow=own.allow,
            deny=own.deny,
            allow_ech=own.allow_ech,
            limits=own.limits,
        )
        await self._apply_network_policy(self.network_policy)
        await self._limit(self._sandbox, size)
        directories = [p for p in (self.task_env_config.workdir,) if p]
        for paths, chmod in ((directories, False), (self._mount_targets(writable_only=True), True)):
            if paths:
                made = await self._exec(self._ensure_dirs_command(paths, chmod=chmod), cwd="/", user="root")
                if made.return_code:
                    raise RuntimeError(f"make {' '.join(paths)} in the sandbox: {made.stderr}")
        await self._upload_environment_dir_after_start()

    def _check_size(self, size: SnapshotInfoDetail) -> None:
        wanted = (
            ("cpus", self._effective_cpus, size.vcpus or 0, "cpu"),
            ("memory_mb", self._effective_memory_mb, size.mem_size_mib or 0, "memory"),
        )
        for field, value, has, resource in wanted:
            if value is not None and value > has:
                raise InvalidArgumentError(
                    f"{field}: the task asks for {value}, and machines of the snapshot {size.tag} have {has}: use a"
                    f" larger snapshot, or {resource}_enforcement_policy = ignore",
                    field=field,
                )

    async def _limit(self, sandbox: AsyncSandbox, size: SnapshotInfoDetail) -> None:
        """Lowers the sandbox's limits to what the task asks for. A machine of exactly that size needs
        no limits."""
        cpus, memory = self._effective_cpus, self._resource_limit_value("memory", auto_mode=ResourceMode.REQUEST)
        has = await sandbox.limits.get()
        old = Limits(**{f: getattr(has, f) for f in Limits.__dataclass_fields__})
        new = old
        if cpus is not None and cpus < min(size.vcpus or math.inf, old.cpus or math.inf):
            new = replace(new, cpus=float(cpus))
        if memory is not None and memory < min(size.mem_size_mib or math.inf, old.memory_mib or math.inf):
            new = replace(new, memory_mib=memory)
        if new is not old:
            await sandbox.limits.set(new)

    async def _built(self, client: AsyncClient, force_build: bool) -> str:
        """The tag of the snapshot of the task's image. If the snapshot does not exist, it is built, only once for all
        trials of this process."""
        image = self.task_env_config.docker_image
        if not should_use_prebuilt_docker_image(self.environment_dir, docker_image=image, force_build=force_build):
            image = None
        cpus, memory, disk = self._effective_cpus, self._effective_memory_mb, self._effective_storage_mb
        key = hashlib.sha256(json.dumps([self.environment_id, image, cpus, memory, disk]).encode()).hexdigest()[:16]
        tag = "harbor-" + re.sub(r"[^A-Za-z0-9._-]", "-", self.environment_name)[:80] + "-" + key
        lock = self._building.setdefault((id(asyncio.get_running_loop()), tag), asyncio.Lock())
        async with lock:
            if not force_build:
                with contextlib.suppress(SnapshotNotFoundError):
                    found = await client.snapshots.info(tag)
                    # Any client may give a branch this tag, so only the result of a build is used.
                    if found.built and found.status == "ready" and not found.warning:
                        return tag
            await client.build(
                None if image else self.environment_dir,
                dockerfile_text=f"FROM {image}\n" if image else None,
                tag=tag,
                vcpus=None if cpus is None else math.ceil(cpus),
                memory_mib=memory,
                disk_mib=disk,
                on_progress=lambda e: self.logger.debug(e.line) if isinstance(e, BuildOutput) else None,
            )
        return tag

    async def stop(self, delete: bool) -> None:
        """Deletes the sandbox, and its snapshots unless keep_snapshots is set. Without delete, it suspends the sandbox
        and keeps everything. Errors are only logged, because the trial has ended."""
        if self._client is None:
            return
        try:
            if delete:
                await self._kill(self._client)
            elif self._sandbox is not None:
                await self._sandbox.suspend()
                self.logger.info(f"the sandbox {self._sandbox.id} is suspended: forkd resume {self._sandbox.id}")
        except ForkdError as e:
            self.logger.error(f"stop the sandbox: {e}")
        self._sandbox = None

    async def _kill(self, client: AsyncClient) -> None:
        """Kills all sandboxes of this environment, even one whose fork was not answered, and deletes its snapshots."""
        self._sandbox = None
        for sandbox in await client.sandboxes({LABEL: self._id}):
            await sandbox.kill()
        if not self._saves or self._keep:
            return
        for snapshot in await client.snapshots.list():
            if snapshot.details is not None and (snapshot.details.labels or {}).get(LABEL) == self._id:
                try:
                    await snapshot.delete(force=True)
                except ForkdError as e:  # for example, a fork runs from it
                    self.logger.warning(f"the snapshot {snapshot.tag} stays: {e}")
                    continue
            self.snapshots = [s for s in self.snapshots if s.tag != snapshot.tag]
        self._write_list()

    async def attach(self) -> None:
        """Replaces this program by a shell in the sandbox."""
        os.execvp("forkd", ["forkd", "shell", self.sandbox.id])

    # The network.

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await self.sandbox.network.set(self._narrowed(network_policy))

    def _narrowed(self, policy: NetworkPolicy) -> Network:
        """The snapshot's own policy, reduced to what Harbor's policy allows."""
        own = self._own
        if policy.network_mode == NetworkMode.PUBLIC or own.mode == "none":
            return own
        if policy.network_mode != NetworkMode.ALLOWLIST or not policy.allowed_hosts:
            return Network(mode="none")
        hosts = policy.allowed_hosts
        if own.mode not in ("public", "open") and (more := sorted(set(hosts) - set(own.allow or ()))):
            raise InvalidArgumentError(
                f"allowed_hosts: the own policy of the snapshot does not allow {', '.join(more)}", field="allowed_hosts"
            )
        return replace(own, mode="allow", allow=hosts)

    # Snapshots.

    @contextlib.contextmanager
    def scoped_exec_env(self, env: dict[str, str]) -> Iterator[None]:
        """Adds environment variables. Harbor calls this around the setup and each run of an agent, and
        agents may call it again within such a call. So the outermost call is a phase."""
        outer = self._phase.get()
        phase = outer or self._next_phase()
        token = self._phase.set(phase)
        try:
            with super().scoped_exec_env(env):
                yield
        finally:
            self._phase.reset(token)
            if outer is None and phase.begun:
                self._ended = phase

    def _next_phase(self) -> _Phase:
        """The phase that begins now. Harbor makes the directory of a step before the step begins."""
        self._phases += 1
        with contextlib.suppress(FileNotFoundError):
            new = {path.name for path in self.trial_paths.steps_dir.iterdir()} - self._steps
            self._steps |= new
            if new:
                return _Phase(max(new))
        return _Phase("setup" if self._phases == 1 else "run")

    async def _save_due(self, command: str | None = None) -> None:
        """Saves the machine if a snapshot is due before the next action of Harbor or of the agent. command is the
        command that this action runs, if any."""
        if self._per is None:
            return
        phase = self._phase.get()
        async with self._saving:
            ended, self._ended = self._ended, None
            if phase is not None and not phase.begun:
                phase.begun = True
                await self._save(phase.name, "before", command)
            elif ended is not None:
                await self._save(ended.name, "after", None)
            elif phase is not None and command is not None and self._per == "command" and phase.name != "setup":
                await self._save(phase.name, "command", command)

    async def _save(self, phase: str, moment: Literal["before", "after", "command"], command: str | None) -> None:
        """Saves the machine. If that fails, for example because the daemon's disk is full, the trial continues."""
        if self._saves >= self._most:
            return
        self._saves += 1
        tag = f"harbor-{self._id}-{self._saves}"
        try:
            await self.sandbox.branch(tag=tag, labels={LABEL: self._id, TRIAL: self.session_id[:256]})
        except ForkdError as e:
            self.logger.warning(f"snapshot {self._saves} ({moment} {phase}) was not made: {e}")
            return
        short = None if command is None else command[:200]
        self.snapshots.append(StepSnapshot(self._saves, tag, phase, moment, short))
        self._write_list()
        if self._saves == self._most:
            self.logger.warning(f"max_snapshots: {self._most}: no further snapshots of this trial are made")

    def _write_list(self) -> None:
        path = self.trial_paths.trial_dir / LIST
        path.write_text(json.dumps([asdict(s) for s in self.snapshots], indent=1) + "\n")

    # Commands.

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command with bash, or with sh if the image has no bash. The command is killed if it
        times out or if this call is cancelled. A timeout raises a RuntimeError, as in Harbor's own environments."""
        await self._save_due(command)
        return await self._exec(command, cwd, env, timeout_sec, user)

    async def _exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        out, err, emit = Capture(MAX_OUTPUT), Capture(MAX_OUTPUT), self._output_callback()
        try:
            handle = await self.sandbox.commands.start(
                [*_SHELL, command],
                env=self._merge_env(env),
                cwd=cwd or self.task_env_config.workdir,
                user=await self._user(user),
                timeout=timeout_sec or None,
                text=False,
            )
        except BadRequestError as e:  # a user or a directory that the sandbox lacks, or too long arguments
            return ExecResult(stdout="", stderr=str(e), return_code=126)
        async with handle:
            result = await handle.wait(_sink(out, "stdout", emit), _sink(err, "stderr", emit))
        if result.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        notes = [result.error] if result.outcome in ("not_found", "not_executable") else []
        notes += [f"forkd: more than {MAX_OUTPUT} bytes of output were discarded"] * (out.truncated or err.truncated)
        return ExecResult(stdout=out.text, stderr="\n".join([err.text, *notes]), return_code=result.exit_code)

    async def _user(self, user: str | int | None) -> str | None:
        """The name of an account, or of Harbor's default. Accounts of the sandbox can also be named by their number."""
        user = self._resolve_user(user)
        if user is None or not str(user).isdigit():
            return user  # type: ignore[return-value]  # it is no number
        if str(user) == "0":
            return "root"
        accounts = await self.sandbox.files._read("/etc/passwd", "root", MAX_PASSWD)
        for line in accounts.decode("utf-8", "replace").splitlines():
            name, *fields = line.split(":")
            if name and fields[1:2] == [str(user)]:
                return name
        return str(user)

    # Files. Uploaded files belong to Harbor's default user.

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Uploads a file of at most 1 GiB, with its permissions if it is executable."""
        await self._save_due()
        mode = stat.S_IMODE(os.stat(source_path).st_mode)
        with open(source_path, "rb") as file:
            await self.sandbox.files.write(target_path, file, user=await self._user(None))
        if mode & 0o111:
            await self._exec(f"chmod {mode & 0o777:o} {shlex.quote(target_path)}", cwd="/", user="root")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Uploads a directory into another one. Existing files are replaced."""
        await self._save_due()
        await self.sandbox.files.write_tree(target_dir, os.fspath(source_dir), user=await self._user(None))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Downloads a file. If that fails, target_path is unchanged."""
        await self._save_due()
        target, size = Path(target_path), 0
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".forkd-", delete=False) as file:
            try:
                async with self.sandbox.files.read_stream(source_path, user="root") as chunks:
                    async for chunk in chunks:
                        size += len(chunk)
                        if size > MAX_DOWNLOAD:
                            raise RuntimeError(f"{source_path}: more than {MAX_DOWNLOAD} bytes")
                        file.write(chunk)
                file.flush()
                os.chmod(file.name, 0o644)
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Downloads the files of a directory. Links and pipes, which an agent may have left, are omitted, and nothing
        is written outside of target_dir."""
        await self._save_due()
        await self.sandbox.files._read_tree(source_dir, target_dir, "root", only_files=True)


def _sink(
    capture: Capture, stream: OutputStream, emit: OutputCallback | None
) -> Capture | Callable[[bytes], Awaitable[None]]:
    """A callback that keeps output, and passes it on as text."""
    if emit is None:
        return capture
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def take(data: bytes) -> None:
        capture(data)
        if text := decoder.decode(data):
            await emit(text, stream)

    return take
