"""langchain-e2b: LangChain's suite for sandboxes of deepagents."""

from __future__ import annotations

from collections.abc import Iterator

import e2b
import pytest
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestSuite(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[E2BSandbox]:
        box = e2b.Sandbox.create(timeout=1800)
        yield E2BSandbox(sandbox=box)
        box.kill()
