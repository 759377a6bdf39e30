"""inspect-sandboxes: Inspect's own checks of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import inspect_sandboxes.e2b._e2b  # noqa: F401  the entry point fails, because it also imports the one for modal
import pytest
from conftest import FAKED
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403
from inspect_sandboxes.e2b._e2b import E2BSandboxEnvironment

# The package's own tests list the same checks as strict expected failures against E2B.
UPSTREAM = "expected to fail by the package's own tests against E2B"
FAILING = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
    "test_exec_permission_error",
    "test_exec_timeout_not_raised_on_fast_signal_death",
    "test_exec_as_nonexistent_user",
    "test_exec_large_command",
}


@pytest.fixture(scope="module")
async def environment() -> AsyncIterator[SandboxEnvironment]:
    await E2BSandboxEnvironment.task_init("self check", None)
    made = await E2BSandboxEnvironment.sample_init("self check", None, {})
    yield made["default"]
    await E2BSandboxEnvironment.sample_cleanup("self check", None, made, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, environment: SandboxEnvironment) -> SandboxEnvironment:
    if FAKED and request.node.originalname == "test_exec_as_user":
        pytest.skip("adds an account, which needs a real VM")
    if request.node.originalname in FAILING:
        request.applymarker(pytest.mark.xfail(strict=True, reason=UPSTREAM))
    return environment
