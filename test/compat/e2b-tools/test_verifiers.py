"""The E2B runtime of verifiers (version 1 of its interface)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from conftest import LONG, served
from e2b import AsyncTemplate, Template
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes.e2b import E2BConfig, E2BRuntime

CONFIG = {"workdir": "/tmp/vf", "creates_per_sec": None, "cpu": 1, "memory": 0.5}


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[E2BRuntime]:
    made = E2BRuntime(E2BConfig(**CONFIG), "tests")
    # The runtime makes its template from an image of Docker's registry, which tests do not reach. It takes a template
    # that exists already.
    name = made._template_name()
    if not await AsyncTemplate.exists(name):
        await AsyncTemplate.build(Template().from_template("base"), name)
    await made.start()
    yield made
    await made.stop()


async def test_a_program(runtime: E2BRuntime) -> None:
    got = await runtime.run(["sh", "-c", "echo $A; pwd; echo err >&2; exit 3"], {"A": "b c"})
    assert (got.exit_code, got.stdout, got.stderr) == (3, "b c\n/tmp/vf\n", "err\n")


async def test_arguments_are_not_parsed_by_a_shell(runtime: E2BRuntime) -> None:
    assert (await runtime.run(["printf", "%s|", "a b", "$HOME", "*"], {})).stdout == "a b|$HOME|*|"


async def test_the_path_of_programs(runtime: E2BRuntime) -> None:
    got = await runtime.run(["/bin/sh", "-c", "echo $PATH"], {"PATH": "/mine:/usr/bin:/bin"})
    assert got.stdout == "/mine:/usr/bin:/bin\n"


async def test_a_durable_program(runtime: E2BRuntime) -> None:
    got = await runtime.run_program(["sh", "-c", "echo out; echo err >&2; exit 5"], {})
    assert (got.exit_code, got.stdout, got.stderr) == (5, "out\n", "err\n")


async def test_a_live_process_has_exact_bytes(runtime: E2BRuntime) -> None:
    process = await runtime.open_process(["head", "-c", "1024"], {})
    sent = bytes(range(256)) * 4
    await process.write(sent)
    assert b"".join([chunk async for chunk in process.stdout]) == sent
    assert await process.wait() == 0


async def test_a_live_process_is_terminated(runtime: E2BRuntime) -> None:
    process = await runtime.open_process(["sleep", "600"], {})
    assert await process.poll() is None
    await process.terminate()
    assert await process.wait() != 0


async def test_a_background_program(runtime: E2BRuntime) -> None:
    await runtime.run_background(["sh", "-c", "echo logged"], {}, "/tmp/vf/log")
    for _ in range(LONG):
        if (await runtime.run(["cat", "/tmp/vf/log"], {})).stdout == "logged\n":
            return
        await asyncio.sleep(0.2)
    raise AssertionError("it has not logged")


async def test_files(runtime: E2BRuntime) -> None:
    await runtime.write("sub/bytes", bytes(range(256)))
    assert await runtime.read("/tmp/vf/sub/bytes") == bytes(range(256))


async def test_a_bounded_read(runtime: E2BRuntime) -> None:
    await runtime.write("long", b"x" * 1000)
    with pytest.raises(SandboxError):
        await runtime.read("long", 10)


async def test_a_missing_file(runtime: E2BRuntime) -> None:
    with pytest.raises(SandboxError):
        await runtime.read("missing")


async def test_it_is_alive(runtime: E2BRuntime) -> None:
    assert await runtime.alive()


async def test_a_server(runtime: E2BRuntime) -> None:
    port = runtime.published_port
    await runtime.write("www/a.txt", b"served")
    await runtime.run_background(["python3", "-m", "http.server", str(port), "-d", "/tmp/vf/www"], {}, "/tmp/vf/server")
    url = await runtime.expose(port) + "/a.txt"
    assert await served(url) == b"served"


@pytest.mark.parametrize(
    "policy",
    [
        {"allow": ["pypi.org", "*.example.com", "10.1.2.0/24"]},
        {"block": ["10.0.0.0/8"]},
        {"allow": []},
    ],
    ids=["names and addresses", "a blocked network", "nothing"],
)
async def test_egress(runtime: E2BRuntime, policy: dict) -> None:
    """The policy applies to the running sandbox. Then it is lifted again."""
    limited = E2BRuntime(E2BConfig(**CONFIG, **policy), "limited")
    limited._sandbox = runtime._sandbox
    assert limited.network_restricted
    await limited.prepare_execution(["https://route.example.org/x"])
    await limited.prepare_execution(None)


async def test_it_ends() -> None:
    made = E2BRuntime(E2BConfig(**CONFIG), "ends")
    await made.start()
    box = made._sandbox
    await made.stop()
    assert not await box.is_running()
