"""What E2B's SDK calls the things that have another name here, for the messages of AttributeErrors."""

from __future__ import annotations

SANDBOX = {
    "sandbox_id": "id",
    "get_info": "info()",
    "is_running": "ping(), or info().state",
    "get_host": "url(port)",
    "set_timeout": "create(ttl=…) or create(idle_timeout=…)",
    "get_metrics": "stats()",
    "create_snapshot": "branch()",
    "beta_pause": "pause(), or suspend() to free its memory",
    "update_network": "network.set(…)",
    "create_code_context": "contexts.create()",
    "list_code_contexts": "contexts.list()",
    "restart_code_context": "contexts.restart(context)",
    "remove_code_context": "contexts.remove(context)",
}
FILES = {
    "get_info": "stat(path)",
    "watch_dir": "watch(path)",
    "write_files": "write(path, data) or write_tree(path, source)",
}


def unknown(owner: object, name: str, known: dict[str, str]) -> AttributeError:
    """The error for an attribute that is not there."""
    here = f"; here it is {known[name]}" if name in known else ""
    return AttributeError(f"{type(owner).__name__} has no {name}{here}", name=name, obj=owner)
