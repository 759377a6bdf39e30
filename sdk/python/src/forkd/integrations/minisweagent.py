"""An environment for mini-swe-agent (pip install 'forkd[mini-swe-agent]'), which is chosen by its path:

    mini --environment-class forkd.integrations.minisweagent.ForkdEnvironment

    environment:
      environment_class: forkd.integrations.minisweagent.ForkdEnvironment
      snapshot: python-numpy
      branches: true

With branches, the environment saves the machine before every command: rollback(3) takes it back to the moment before
the third, and fork(3) makes environments that go on from there, for other attempts at that step. cleanup deletes the
branches, except those that a sandbox or another snapshot needs: call cleanup of forks first.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import Any

from minisweagent.environments.local import LocalEnvironment, LocalEnvironmentConfig
from minisweagent.utils.serialize import recursive_merge

from .._errors import ForkdError
from .._sync._sandbox import Sandbox
from .._sync._snapshot import Snapshot
from ._capture import MERGED, Capture

MAX_OUTPUT = 16 << 20  # bytes; more output of a command is discarded


class ForkdEnvironmentConfig(LocalEnvironmentConfig):
    """Adds fields to those of LocalEnvironmentConfig: cwd, env and timeout (in seconds)."""

    snapshot: str
    """The tag of the snapshot that the sandbox is forked from."""
    user: str | None = None
    """The user that commands run as; None: the snapshot's own user."""
    network: str | dict[str, Any] | None = None
    """A mode such as "none", or the fields of a network policy; None: the snapshot's own policy."""
    ttl: float = 7200
    """Seconds after which the daemon deletes a sandbox, also one of fork, if cleanup was not called."""
    interpreter: list[str] = ["bash", "-lc"]
    """The argv that a command is appended to."""
    branches: bool = False
    """Whether to save the machine before every command. Each branch is a snapshot until cleanup deletes it."""


class ForkdEnvironment(LocalEnvironment):
    """Runs bash commands in a sandbox, which cleanup kills."""

    config: ForkdEnvironmentConfig

    def __init__(
        self, *, config_class: type = ForkdEnvironmentConfig, sandbox: Sandbox | None = None, **kwargs: Any
    ) -> None:
        """The keyword arguments are the fields of ForkdEnvironmentConfig. If sandbox is given, the environment uses it
        and forks none."""
        super().__init__(config_class=config_class, **kwargs)
        self.sandbox: Sandbox = sandbox or Sandbox.create(
            self.config.snapshot, network=self.config.network, ttl=self.config.ttl
        )
        self.branches: list[Snapshot] = []
        """The machine before each command, if the configuration has branches."""
        self._saved: list[Snapshot] = []  # all branches made, in their order
        uname = self.sandbox.commands.run("uname -s; uname -n; uname -r; uname -v; uname -m", check=True).stdout
        self._uname = dict(zip(("system", "node", "release", "version", "machine"), uname.splitlines()))

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Runs a command. If it times out, the result has its output and the error, as in other environments."""
        command, seconds, captured = action.get("command", ""), timeout or self.config.timeout, Capture(MAX_OUTPUT)
        output: dict[str, Any]
        try:
            if self.config.branches:
                self._saved.append(self.sandbox.branch()[0])
                self.branches.append(self._saved[-1])
            result = self.sandbox.commands.run(
                [*MERGED, *self.config.interpreter, command],
                cwd=cwd or self.config.cwd or None,
                env=self.config.env,
                user=self.config.user,
                timeout=seconds,
                text=False,
                on_stdout=captured,
            )
            if result.timed_out:
                raise subprocess.TimeoutExpired(command, seconds)
            output = {"output": captured.text, "returncode": result.exit_code, "exception_info": ""}
        except Exception as e:
            output = {
                "output": captured.text,
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {e}",
                "extra": {"exception_type": type(e).__name__, "exception": str(e)},
            }
        self._check_finished(output)
        return output

    def rollback(self, step: int) -> None:
        """Takes the machine back to the moment before command number step, from 1. Forgets later branches."""
        self.sandbox.rollback(self.branches[step - 1])
        del self.branches[step:]

    def fork(self, step: int | None = None, n: int = 1) -> list[ForkdEnvironment]:
        """Returns n environments that go on from the moment before a command, or from now."""
        source = self.sandbox if step is None else self.branches[step - 1]
        made = source.fork(n, ttl=self.config.ttl)
        return [ForkdEnvironment(sandbox=s, **self.config.model_dump()) for s in made]

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """The variables of prompts. They describe the sandbox, not the host of this program."""
        return recursive_merge(self.config.model_dump(), self._uname, kwargs)

    def cleanup(self) -> None:
        """Kills the sandbox and deletes its branches, except those that a sandbox or another snapshot needs."""
        self.sandbox.kill()
        for snapshot in reversed(self._saved):  # a branch needs the branches before it
            with suppress(ForkdError):
                snapshot.delete()
        self._saved.clear()
