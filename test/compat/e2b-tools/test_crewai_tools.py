"""CrewAI's three tools for E2B, each as an agent calls it: by run() with the arguments of its schema."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import e2b
import pytest
from crewai_tools import E2BExecTool, E2BFileTool, E2BPythonTool

BYTES = bytes([0, 255, 0xC3, 0x28])
DIR = "/home/user/crew"


@pytest.fixture(scope="module")
def shell() -> Iterator[E2BExecTool]:
    tool = E2BExecTool(persistent=True, sandbox_timeout=1800, envs={"GIVEN": "word"}, metadata={"made-by": "crew"})
    yield tool
    tool.close()


@pytest.fixture(scope="module")
def files(shell: E2BExecTool) -> E2BFileTool:
    shell.run(command="true")  # creates the sandbox
    return E2BFileTool(sandbox_id=shell._persistent_sandbox.sandbox_id, sandbox_timeout=1800)


@pytest.fixture(scope="module")
def python() -> Iterator[E2BPythonTool]:
    tool = E2BPythonTool(persistent=True, sandbox_timeout=1800)
    yield tool
    tool.close()


def test_a_command(shell: E2BExecTool) -> None:
    got = shell.run(command="echo $GIVEN $MORE; pwd; echo err >&2", cwd="/tmp", envs={"MORE": "more"})
    assert (got["exit_code"], got["stdout"], got["stderr"]) == (0, "word more\n/tmp\n", "err\n")


def test_a_command_that_fails(shell: E2BExecTool) -> None:
    with pytest.raises(Exception, match="exited with code 3"):
        shell.run(command="exit 3")


def test_a_command_that_takes_too_long(shell: E2BExecTool) -> None:
    with pytest.raises(e2b.TimeoutException):
        shell.run(command="sleep 600", timeout=3)


def test_a_sandbox_of_its_own_for_each_call() -> None:
    assert E2BExecTool(sandbox_timeout=600).run(command="echo once")["stdout"] == "once\n"


def test_an_existing_sandbox(shell: E2BExecTool, files: E2BFileTool) -> None:
    assert E2BExecTool(sandbox_id=files.sandbox_id).run(command="echo $GIVEN")["stdout"] == "word\n"
    assert shell.run(command="echo it lives")["stdout"] == "it lives\n"


def test_metadata(files: E2BFileTool) -> None:
    assert e2b.Sandbox.get_info(files.sandbox_id).metadata == {"made-by": "crew"}


def test_text_is_written_and_read(files: E2BFileTool) -> None:
    files.run(action="write", path=f"{DIR}/sub/text", content="héllo")
    assert files.run(action="read", path=f"{DIR}/sub/text") == {
        "path": f"{DIR}/sub/text",
        "encoding": "utf-8",
        "content": "héllo",
    }


def test_bytes_are_written_and_read(files: E2BFileTool) -> None:
    files.run(action="write", path=f"{DIR}/bytes", content=base64.b64encode(BYTES).decode(), binary=True)
    assert base64.b64decode(files.run(action="read", path=f"{DIR}/bytes", binary=True)["content"]) == BYTES


@pytest.mark.xfail(
    strict=True, raises=e2b.InvalidArgumentException, reason="the tool sends a bytearray, which the SDK refuses"
)
def test_text_is_appended(files: E2BFileTool) -> None:
    files.run(action="write", path=f"{DIR}/log", content="one\n")
    got = files.run(action="append", path=f"{DIR}/log", content="two\n")
    assert got["total_bytes"] == 8 and files.run(action="read", path=f"{DIR}/log")["content"] == "one\ntwo\n"


def test_a_directory_is_made_and_listed(files: E2BFileTool) -> None:
    assert files.run(action="mkdir", path=f"{DIR}/made")["created"]
    files.run(action="write", path=f"{DIR}/made/deep/file", content="")
    names = [e["name"] for e in files.run(action="list", path=f"{DIR}/made", depth=2)["entries"]]
    assert sorted(names) == ["deep", "file"]


def test_metadata_of_a_file(files: E2BFileTool) -> None:
    files.run(action="write", path=f"{DIR}/info", content="12345")
    got = files.run(action="info", path=f"{DIR}/info")
    assert (got["name"], got["size"], got["path"]) == ("info", 5, f"{DIR}/info") and got["modified_time"]


def test_a_file_is_deleted(files: E2BFileTool) -> None:
    files.run(action="write", path=f"{DIR}/gone", content="")
    assert files.run(action="exists", path=f"{DIR}/gone")["exists"]
    files.run(action="delete", path=f"{DIR}/gone")
    assert not files.run(action="exists", path=f"{DIR}/gone")["exists"]


def test_a_missing_file(files: E2BFileTool) -> None:
    with pytest.raises(e2b.NotFoundException):
        files.run(action="read", path=f"{DIR}/missing")


def test_code_keeps_its_variables(python: E2BPythonTool) -> None:
    python.run(code="x = 40")
    got = python.run(code="print('printed'); x + 2")
    assert got["text"] == "42" and "".join(got["stdout"]) == "printed\n" and got["error"] is None


def test_an_error_of_code(python: E2BPythonTool) -> None:
    assert python.run(code="1 / 0")["error"]["name"] == "ZeroDivisionError"


def test_another_language(python: E2BPythonTool) -> None:
    assert "".join(python.run(code="echo $((40+2))", language="bash")["stdout"]).strip() == "42"


def test_code_that_takes_too_long(python: E2BPythonTool) -> None:
    with pytest.raises(e2b.TimeoutException):
        python.run(code="import time; time.sleep(600)", timeout=3)
