"""E2B's names of what has another one here, for the messages of AttributeErrors. docs/sdk.md has all names."""

from __future__ import annotations

SANDBOX = {
    "get_host": "url(port)",
    "get_metrics": "stats()",
    "create_snapshot": "branch()",
    "list_snapshots": "client.snapshots.list()",
    "delete_snapshot": "client.snapshots.delete(tag)",
    "beta_pause": "pause(), or suspend() to free its memory",
    "update_network": "network.set(…)",
    "download_url": "files.read(path)",
    "upload_url": "files.write(path, data)",
    "git": 'commands.run(["git", …])',
}
COMMANDS = {
    "stream_input": "start(cmd, stdin=True), and write(data) of its handle",
    "close_stdin": 'send_stdin(pid, b"", close=True)',
}
FILES = {
    "watch_dir": "watch(path)",
    "write_files": "write(path, data) or write_tree(path, source)",
}


def unknown(owner: object, name: str, known: dict[str, str]) -> AttributeError:
    """The error for an attribute that is not there."""
    here = f"; here it is {known[name]}" if name in known else ""
    return AttributeError(f"{type(owner).__name__} has no {name}{here}", name=name, obj=owner)
