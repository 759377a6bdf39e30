"""Generated files are up to date, and both halves have the same API."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import errors as error_tool
import generate
import pytest
import unasync

import forkd
from forkd import errors, types

SDK = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(not error_tool.DOCUMENT.exists(), reason="docs and api of the repository are not there")
def test_everything_generated_is_up_to_date() -> None:
    assert generate.stale() == []


@pytest.mark.skipif(not error_tool.DOCUMENT.exists(), reason="docs and api of the repository are not there")
def test_every_code_of_an_error_has_a_class() -> None:
    document = error_tool.DOCUMENT.read_text()
    codes = set(re.findall(r'<a id="(\w+)">', document))
    assert codes == set(errors.BY_CODE)
    for code in codes:
        assert errors.BY_CODE[code].__name__ == "".join(w.capitalize() for w in code.split("_")) + "Error"


def test_sync_half_has_no_trace_of_the_async_one() -> None:
    for path in (SDK / "src/forkd/_sync").glob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("#")[0]
            assert not re.search(r"\b(await|asyncio|__a\w+__)\b|\basync (def|with|for)\b", code), (
                f"{path}:{number}: {line}"
            )


def test_unasync_rules() -> None:
    source = (
        "class AsyncThing:\n    async def get(self) -> AsyncIterator[int]:\n        async with self as x:\n"
        "            return await anext(x)\n    x = 1  # async only\n    # sync: x = 2\n    asynchronous = Async\n"
    )
    assert unasync.convert(source, "a.py").split("\n", 1)[1] == (
        "class Thing:\n    def get(self) -> Iterator[int]:\n        with self as x:\n            return next(x)\n"
        "    x = 2\n    asynchronous = Async\n"
    )


@pytest.mark.parametrize("name", [n for n in forkd.__all__ if n.startswith("Async")])
def test_async_class_has_the_methods_of_its_twin(name: str) -> None:
    both = getattr(forkd, name), getattr(forkd, name.removeprefix("Async"))
    one, other = ({n for n in vars(cls) if not n.startswith("_")} for cls in both)
    assert {unasync.RENAMED.get(n, n) for n in one} == other
    for method in one:
        a, b = (inspect.getattr_static(cls, n) for cls, n in zip(both, (method, unasync.RENAMED.get(method, method))))
        if inspect.isfunction(a):
            assert list(inspect.signature(a).parameters) == list(inspect.signature(b).parameters), method


def test_messages_ignore_what_they_do_not_know_and_leave_out_none() -> None:
    info = types.SandboxInfo.from_json({"id": "sb-1", "new_field": 1, "unique": {"repeats": [{"pid": 7}]}})
    assert (
        info.id == info["id"] == "sb-1"
        and info.state == ""
        and info.unique is not None
        and info.unique.repeats[0].pid == 7
    )
    assert types.Network(mode="allow", allow=["a"], secrets=[types.NetworkSecret(host="h", header="x")]).to_json() == {
        "mode": "allow",
        "allow": ["a"],
        "secrets": [{"host": "h", "header": "x"}],
    }
    assert types.MoveFile(from_="a", to="b").to_json() == {"from": "a", "to": "b"}
    assert info.get("pid", 3) == 3
    with pytest.raises(KeyError):
        info["nothing"]
    with pytest.raises(AttributeError):
        info.id = "other"  # type: ignore[misc]  # it is frozen
