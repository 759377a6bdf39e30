"""The programs at the beginning of docs/e2b.md, unchanged. A comment at the end of a line gives the line's output."""

from __future__ import annotations

import os
import re
import subprocess
import sys

os.environ.update(E2B_API_URL=os.environ["FORKD_URL"], E2B_SANDBOX_URL=os.environ["FORKD_URL"],
                  E2B_API_KEY=os.environ["FORKD_TOKEN"], E2B_VALIDATE_API_KEY="false",
                  PATH=os.path.join(sys.prefix, "bin") + os.pathsep + os.environ["PATH"])

import npm  # noqa: E402
from e2b_code_interpreter import Sandbox  # noqa: E402
from report import Report, want  # noqa: E402

TEMPLATE = "code-interpreter-v1"  # the template that the SDKs use by default

r = Report("the quick start of docs/e2b.md")
with open("docs/e2b.md") as f:
    text = f.read()


def program(language: str) -> tuple[str, list[str]]:
    """The source of the program, and its expected output, with a line for each print."""
    source = re.search(rf"```{language}\n(.*?)```", text, re.S)[1]
    prints = re.findall(r"(?:print|console\.log)\(.*?(?:#|//) (.*)", source)
    want(len(prints) >= 4, source)
    return source, prints


def run(command: list[str], source: str, prints: list[str], **more) -> None:
    done = subprocess.run(command, input=source, capture_output=True, text=True, **more)
    want(done.returncode == 0, done.stderr)
    got = [line for line in done.stdout.splitlines() if line]
    # A line in a loop prints once for each of the two copies.
    want(got == prints + prints[-1:], f"printed {got}, the document says {prints}")


def python() -> None:
    run([sys.executable, "-"], *program("python"))


def javascript() -> None:
    there = os.path.join(sys.prefix, "npm")
    os.makedirs(there, exist_ok=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", there, *npm.sdk("@e2b/code-interpreter")], check=True)
    run(["node", "--input-type=module", "-"], *program("js"), cwd=there)


def template() -> None:
    source = Sandbox.create(os.environ["COMPAT_INTERPRETER_TAG"], timeout=600, request_timeout=120)
    source.create_snapshot(TEMPLATE)
    source.kill()


def removed() -> None:
    for box in Sandbox.list().next_items():
        if box.template_id == TEMPLATE:  # left by a program that failed
            Sandbox.kill(box.sandbox_id)
    want(Sandbox.delete_snapshot(TEMPLATE), "it was not there")


r.case("a snapshot is the template", template)
r.case("Python", python)
r.case("JavaScript", javascript)
r.case("the template is removed", removed)
r.finish()
