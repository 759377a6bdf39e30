"""The cost of `import forkd`."""

from __future__ import annotations

import json
import subprocess
import sys

# Modules that take long to import, or that programs without an event loop, an archive or TLS do not need. They are
# imported when they are first used.
NOT_AT_ONCE = {
    "asyncio",
    "httpx2",
    "httpcore2",
    "anyio",
    "ssl",
    "wsproto",
    "h11",
    "tarfile",
    "tempfile",
    "subprocess",
    "urllib.request",
    "http.client",
    "email",
    "concurrent.futures",
    "logging",
    "yaml",
    "typing_extensions",
}
MOST = 110  # modules, including Python's own

PROGRAM = """
import json, sys, time
before, began = set(sys.modules), time.process_time()
import forkd
print(json.dumps({"ms": (time.process_time() - began) * 1000, "modules": sorted(set(sys.modules) - before)}))
"""


def test_import_loads_few_modules() -> None:
    said = json.loads(subprocess.run([sys.executable, "-I", "-c", PROGRAM], check=True, capture_output=True).stdout)
    print(f"import forkd: {said['ms']:.0f} ms of processor time, {len(said['modules'])} modules")
    assert not NOT_AT_ONCE & set(said["modules"])
    assert len(said["modules"]) <= MOST, said["modules"]
    assert not [m for m in said["modules"] if m.startswith("forkd.integrations")]


FRAMEWORKS = [
    "deepagents",
    "inspect_ai",
    "jupyter_client",
    "langchain_core",
    "langgraph",
    "minisweagent",
    "pydantic",
    "pydantic_ai",
]

WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({FRAMEWORKS!r}))  # importing one is an error
import forkd, forkd.integrations
for name in forkd.__all__:
    getattr(forkd, name)
"""


def test_nothing_but_the_adapters_needs_a_framework() -> None:
    subprocess.run([sys.executable, "-I", "-c", WITHOUT], check=True)


def test_every_name_can_be_imported() -> None:
    import forkd

    for name in forkd.__all__:
        assert getattr(forkd, name) is not None
        assert name in dir(forkd)
