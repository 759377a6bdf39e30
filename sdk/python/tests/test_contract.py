"""The scenarios that all SDKs have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import contract_runner
import pytest
import yaml
from contract_runner import CONTRACT, OPERATIONS, Runner, Step, at, holds, operations_json

pytestmark = pytest.mark.skipif(not CONTRACT.exists(), reason="test/contract of the repository is not there")
SCENARIOS = contract_runner.scenarios() if CONTRACT.exists() else []


@pytest.mark.parametrize("half", ["sync", "async"])
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.get("needs") != "vm"], ids=lambda s: s["name"])
def test_scenario(rig: Any, scenario: dict[str, Any], half: str) -> None:
    Runner(rig, half).run(scenario)


def test_every_operation_is_known() -> None:
    known = {o["op"] for o in yaml.safe_load((CONTRACT / "operations.yaml").read_text())}
    assert known == set(OPERATIONS)


def test_operations_json_is_up_to_date() -> None:
    path = Path(__file__).with_name("operations.json")
    assert path.read_text() == operations_json(), "write contract_runner.operations_json() to it"


def test_a_runner_fails_where_it_should(rig: Any) -> None:
    for steps in (
        [{"do": "client.version", "expect": {"api": "v2"}}],
        [{"do": "client.nothing"}],
        [{"do": "client.version", "unknown": 1}],
        [{"do": "client.version", "with": {"unknown": 1}}],
        [{"do": "client.version", "error": {"class": "ForkdError"}}],
        [{"do": "client.fork", "with": {"snapshot": "${nothing}"}}],
        [{"do": "client.fork", "with": {"snapshot": "none"}, "error": {"class": "BusyError"}}],
    ):
        with pytest.raises(Step):
            Runner(rig, "sync").run({"name": "fails", "steps": steps})
    assert not holds("abc", {"matches": "^b"}) and holds("abc", {"not": {"matches": "^b"}})
    assert at({"a": [{"b": 1}]}, "a.-1.b") == 1 and at({"a": []}, "a.0.b") is None
