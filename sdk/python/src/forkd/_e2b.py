# Made from sdk/e2b.json by tools/names.py. Do not edit.
"""Names of E2B's SDK that have another one here: of classes, of what is imported, and of parameters."""

from __future__ import annotations

ATTRIBUTES: dict[str, dict[str, str]] = {
    "Sandbox": {
        "get_host": "url(port)",
        "get_metrics": "stats()",
        "create_snapshot": "branch()",
        "list_snapshots": "client.snapshots.list()",
        "delete_snapshot": "client.snapshots.delete(tag)",
        "beta_pause": "pause(), or suspend() to free its memory",
        "update_network": "network.set(policy)",
        "download_url": "files.read(path)",
        "upload_url": "files.write(path, data)",
        "get_mcp_url": "the tools of `forkd mcp`, see docs/mcp.md",
        "git": 'commands.run(["git", …])',
    },
    "Commands": {
        "stream_input": "start(cmd, stdin=True), and write(data) of its handle",
        "close_stdin": 'send_stdin(pid, b"", close=True)',
    },
    "Pty": {
        "send_input": "send_stdin(pid, data)",
    },
    "CommandHandle": {
        "stdout": "stdout of what wait() returns",
        "stderr": "stderr of what wait() returns",
        "exit_code": "exit_code of what wait() returns",
    },
    "Files": {
        "watch_dir": "watch(path)",
        "write_files": "write(path, data) or write_tree(path, source)",
    },
}

STATICS: dict[str, dict[str, str]] = {
    "Sandbox": {
        "kill": "Sandbox.connect(id).kill()",
        "get_info": "Sandbox.connect(id).get_info()",
        "set_timeout": "Sandbox.connect(id).set_timeout(seconds)",
        "get_metrics": "Sandbox.connect(id).stats()",
        "pause": "Sandbox.connect(id).suspend()",
        "resume": "Sandbox.connect(id).resume()",
        "beta_pause": "Sandbox.connect(id).suspend()",
        "beta_create": "Sandbox.create(snapshot)",
        "create_snapshot": "Sandbox.connect(id).branch(tag=…)",
        "list_snapshots": "client.snapshots.list()",
        "delete_snapshot": "client.snapshots.delete(tag)",
    },
}

MODULE: dict[str, str] = {
    "Template": "Snapshot.build(context, tag=…), from a Dockerfile; see docs/build.md",
    "AsyncTemplate": "AsyncSnapshot.build(context, tag=…), from a Dockerfile; see docs/build.md",
    "CommandExitException": "CommandFailed, of check=True",
    "SandboxException": "ForkdError",
    "TimeoutException": "errors.TimeoutError",
    "NotFoundException": "errors.SandboxNotFoundError, or errors.NotFoundInSandboxError",
    "AuthenticationException": "errors.UnauthenticatedError",
    "InvalidArgumentException": "InvalidArgumentError",
    "NotEnoughSpaceException": "errors.NoSpaceError",
    "RateLimitException": "errors.TooManyRequestsError",
    "SandboxQuery": "Sandbox.list(labels={name: value})",
}

PARAMETERS: dict[str, str] = {
    "envs": "env",
    "env_vars": "env",
    "metadata": "labels",
    "query": "labels={name: value}",
    "template": "snapshot",
    "snapshot_tag": "snapshot",
    "sandbox_id": "id",
    "timeout": "ttl of a sandbox, or Client(timeout=…) of a request",
    "request_timeout": "Client(timeout=…)",
    "lifecycle": "idle_timeout, after which it is suspended",
    "auto_pause": "idle_timeout, after which it is suspended",
    "allow_internet_access": 'network="none"',
    "api_key": "Client(token=…)",
    "api_url": "Client(url=…)",
    "domain": "Client(url=…)",
    "background": "start() instead of run()",
    "on_error": "error of what run_code returns",
    "on_data": "the handle, to iterate over",
    "on_event": "the changes, to iterate over",
    "size": "cols and rows",
    "old_path": "old",
    "new_path": "new",
    "count": "n",
}
