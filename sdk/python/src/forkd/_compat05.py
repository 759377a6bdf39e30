"""The API of the package forkd 0.5.3, with its behaviour: Controller, and Sandbox(tag, …).

Both work with a daemon of this version. Like the original, they use only the standard library."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import IO, Any, Literal, Self
from urllib.parse import urlsplit

from . import _answers
from ._answers import parsed
from ._output import CommandResult
from ._sync._sandbox import Sandbox

BranchMode = Literal["full", "diff", "live"]
"""How a branch saves memory."""


class ControllerError(RuntimeError):
    """An answer without a successful status: its status, its decoded body, and the URL."""

    def __init__(self, status: int, body: Any, url: str) -> None:
        self.status = status
        self.body = body
        self.url = url
        super().__init__(f"controller {url}: HTTP {status}: {body if isinstance(body, str) else json.dumps(body)}")


class _Direct(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because the target server would receive the token."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Controller:
    """The REST API of forkd 0.5, over TCP: a method for each route, with dicts as answers. Client has the
    whole API. base_url defaults to $FORKD_URL or http://127.0.0.1:8889, and token to $FORKD_TOKEN. timeout
    applies to one request, in seconds."""

    def __init__(self, base_url: str | None = None, token: str | None = None, timeout: float = 60.0) -> None:
        self.base_url: str = (base_url or os.environ.get("FORKD_URL") or "http://127.0.0.1:8889").rstrip("/")
        self.token: str | None = token if token is not None else os.environ.get("FORKD_TOKEN")
        self.timeout = timeout

    def list_snapshots(self) -> list[dict[str, Any]]:
        """GET /v1/snapshots"""
        return self._request("GET", "/v1/snapshots")

    def delete_snapshot(self, tag: str) -> None:
        """DELETE /v1/snapshots/TAG"""
        self._request("DELETE", f"/v1/snapshots/{tag}")

    def spawn_sandboxes(
        self,
        snapshot_tag: str,
        n: int = 1,
        per_child_netns: bool = False,
        memory_limit_mib: int | None = None,
        prewarm: bool = False,
        live_fork: bool = False,
        hugepages: bool = False,
    ) -> list[dict[str, Any]]:
        """POST /v1/sandboxes: n children of a snapshot. The last three parameters have no effect any more."""
        body: dict[str, Any] = {"snapshot_tag": snapshot_tag, "n": n, "per_child_netns": per_child_netns}
        if memory_limit_mib is not None:
            body["memory_limit_mib"] = memory_limit_mib
        body |= {k: True for k, v in (("prewarm", prewarm), ("live_fork", live_fork), ("hugepages", hugepages)) if v}
        return self._request("POST", "/v1/sandboxes", body)

    def list_sandboxes(self) -> list[dict[str, Any]]:
        """GET /v1/sandboxes"""
        return self._request("GET", "/v1/sandboxes")

    def get_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """GET /v1/sandboxes/ID"""
        return self._request("GET", f"/v1/sandboxes/{sandbox_id}")

    def kill_sandbox(self, sandbox_id: str) -> None:
        """DELETE /v1/sandboxes/ID"""
        self._request("DELETE", f"/v1/sandboxes/{sandbox_id}")

    def branch_sandbox(
        self,
        sandbox_id: str,
        tag: str | None = None,
        diff: bool = False,
        measure_diff: bool = False,
        mode: BranchMode | None = None,
        wait: bool = True,
    ) -> dict[str, Any]:
        """POST /v1/sandboxes/ID/branch: a snapshot of a running sandbox. diff is an older name of mode="diff"."""
        body: dict[str, Any] = {} if tag is None else {"tag": tag}
        if mode is not None:
            body["mode"] = mode
        elif diff:
            body["diff"] = True
        if measure_diff:
            body["measure_diff"] = True
        if not wait:
            body["wait"] = False
        return self._request("POST", f"/v1/sandboxes/{sandbox_id}/branch", body)

    def exec_command(self, sandbox_id: str, args: list[str], timeout_secs: int = 30) -> dict[str, Any]:
        """POST /v1/sandboxes/ID/exec: runs an argv and returns {stdout, stderr, exit_code, …}."""
        return self._request("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"args": args, "timeout_secs": timeout_secs})

    def eval_code(self, sandbox_id: str, code: str) -> dict[str, Any]:
        """POST /v1/sandboxes/ID/eval: runs code in the warm interpreter and returns {result, error, exit_code, …}."""
        return self._request("POST", f"/v1/sandboxes/{sandbox_id}/eval", {"code": code})

    def ping_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """POST /v1/sandboxes/ID/ping"""
        return self._request("POST", f"/v1/sandboxes/{sandbox_id}/ping")

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        url = f"{self.base_url}{path}"
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        try:
            # Without proxies, because a proxy of the environment would receive the token.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Direct)
            with opener.open(request, timeout=self.timeout) as answer:
                raw = _whole(answer)
        except urllib.error.HTTPError as e:
            with e:
                raw = _whole(e)
            try:
                problem = json.loads(raw) if raw else {}
            except (ValueError, RecursionError):
                problem = raw.decode(errors="replace")
            raise ControllerError(e.code, problem, url) from e
        return parsed(raw) if raw else None


def _whole(answer: IO[bytes]) -> bytes:
    raw = answer.read(_answers.MAX_ANSWER + 1)
    if len(raw) > _answers.MAX_ANSWER:
        raise _answers.too_large(_answers.MAX_ANSWER)
    return raw


class _LegacyCommands:
    """sandbox.commands of 0.5."""

    def __init__(self, sandbox: LegacySandbox) -> None:
        self._sandbox = sandbox

    def run(self, cmd: str | Sequence[str], timeout: int = 30) -> CommandResult:
        """Runs an argv, or a string by /bin/sh -c, and returns its output and exit code."""
        args = ["/bin/sh", "-c", cmd] if isinstance(cmd, str) else list(cmd)
        answer = self._sandbox._send({"action": "exec", "args": args, "timeout": timeout})
        if "error" in answer and "stdout" not in answer:
            return CommandResult(stdout="", stderr=answer["error"], exit_code=1)
        return CommandResult(answer.get("stdout", ""), answer.get("stderr", ""), int(answer.get("exit_code", -1)))


class LegacySandbox(Sandbox):
    """Sandbox(tag, …) of 0.5: it forks a snapshot with the command forkd, and connects to the agent at an
    address. Other methods of Sandbox need a sandbox from Sandbox.create(snapshot) or Sandbox.connect(id)."""

    DEFAULT_TAG = os.environ.get("FORKD_TAG", "pyagent")
    DEFAULT_TARGET = os.environ.get("FORKD_TARGET", "10.42.0.2:8888")

    def __init__(
        self, tag: str | None = None, target: str | None = None, timeout: int = 30, *, spawn: bool = True
    ) -> None:
        self.tag = tag or self.DEFAULT_TAG
        self.target = target or self.DEFAULT_TARGET
        self.timeout = timeout
        self.commands = _LegacyCommands(self)  # type: ignore[assignment]  # the commands of 0.5
        self._fork: subprocess.Popen[bytes] | None = None
        if spawn:
            self._spawn()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a Sandbox made by Sandbox(tag) has no {name}: use Sandbox.create(snapshot)", name=name, obj=self
        )

    def __repr__(self) -> str:
        return f"<Sandbox of {self.tag} at {self.target}>"

    def eval(self, code: str) -> Any:
        """The repr of an expression in the warm interpreter, or its decoded value if the agent answers in JSON."""
        answer = self._send({"action": "eval", "code": code})
        if "error" in answer:
            raise RuntimeError(f"forkd eval: {answer['error']}")
        return json.loads(answer["result_json"]) if "result_json" in answer else answer.get("result")

    def ping(self) -> Any:
        """The agent's answer: {"pong": True, …}."""
        return self._send({"action": "ping"})

    def kill(self) -> Any:
        """Ends the sandbox."""
        if self._fork is None:
            return
        self._fork.terminate()
        try:
            self._fork.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._fork.kill()
            self._fork.wait()
        if self._fork.stderr:
            self._fork.stderr.close()
        self._fork = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def _spawn(self) -> None:
        if shutil.which("forkd") is None:
            raise RuntimeError(
                "Sandbox(tag) runs the command `forkd`, which is not on PATH; Sandbox.create(snapshot) does not"
            )
        self._fork = subprocess.Popen(
            ["forkd", "fork", "--tag", self.tag, "-n", "1", "--settle-secs", "3600"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        deadline, last = time.monotonic() + 30, None
        while time.monotonic() < deadline:
            try:
                self.ping()
                return
            except OSError as e:
                last = e
            if code := self._fork.poll():
                said = self._fork.stderr.read() if self._fork.stderr else b""
                self.kill()
                raise RuntimeError(
                    f"forkd fork --tag {self.tag} exited with code {code}:\n{said.decode(errors='replace')}"
                )
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"sandbox didn't come up at {self.target} within 30s (last error: {last})")

    def _send(self, message: dict[str, Any]) -> dict[str, Any]:
        parts = urlsplit("//" + self.target)
        if parts.hostname is None or parts.port is None:
            raise ValueError(
                f"invalid forkd target {self.target!r}; expected host:port (e.g. 10.42.0.2:8888 or [::1]:8888)"
            )
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as s:
            s.settimeout(self.timeout + 5)
            s.sendall((json.dumps(message) + "\n").encode())
            s.shutdown(socket.SHUT_WR)
            answer = bytearray()
            try:
                while chunk := s.recv(65536):
                    answer += chunk
                    if len(answer) > _answers.MAX_ANSWER:
                        raise _answers.too_large(_answers.MAX_ANSWER)
            except TimeoutError as e:
                raise TimeoutError(
                    f"forkd: no response from guest agent at {self.target} within {self.timeout + 5}s"
                ) from e
        if not answer:
            raise RuntimeError(f"forkd: empty response from guest agent at {self.target} (the agent may have crashed)")
        return parsed(answer)
