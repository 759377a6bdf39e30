"""The Go client of this repository, in the way that users get it: required by a module in an empty
directory.

The module has the examples of package client, the program of docs/sdk.md unchanged, and the scenarios of
the contract. VMs are fake."""

from __future__ import annotations

import os
import re
import tempfile

import gomodule
import rig
from report import Report, want

r = Report("forkd (the Go client of this repository)")
START = re.compile(r"```go\n(package main\n.*?)```\n\n```\n(.*?)```\n", re.DOTALL)
# The packages that a program with the client contains, without the standard library and this repository.
BUILT_IN = {"github.com/coder/websocket", "github.com/moby/patternmatcher", "golang.org/x/sys"}

with tempfile.TemporaryDirectory() as scratch, open(os.path.join(gomodule.ROOT, "docs/sdk.md")) as f:
    program, output = START.search(f.read()).groups()
    user, start = os.path.join(scratch, "user"), os.path.join(scratch, "start")

    def made() -> None:
        gomodule.make(user, "test/compat/sdk-go/testdata/user_test.go", "client/example_test.go")

    def begun(daemon: dict) -> None:
        os.makedirs(start)
        with open(os.path.join(start, "main.go"), "w") as main:
            main.write(program.replace('"python-numpy"', f'"{daemon["snapshot"]}"'))
        for step in (("mod", "init", "example.com/start"),
                     ("mod", "edit", f"-replace={gomodule.MODULE}={gomodule.ROOT}"), ("mod", "tidy")):
            gomodule.go(start, *step)
        got = gomodule.go(start, "run", ".", FORKD_URL=daemon["url"], FORKD_TOKEN=daemon["token"])
        want(got == output, f"it prints {got!r} and not {output!r}")

    def small() -> None:
        modules = set(gomodule.go(start, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", ".").split())
        want(modules == BUILT_IN | {gomodule.MODULE}, f"a program that uses the client consists of {sorted(modules)}")
        for system in ("darwin", "windows"):
            gomodule.go(start, "build", "-o", os.devnull, ".", GOOS=system)

    def all_cases() -> None:
        with rig.daemon(rig.build(os.path.join(scratch, "rigd"))) as daemon:
            r.case("a module that requires the client is made", made)
            gomodule.tests(r, "tests", user, FORKD_URL=daemon["url"], FORKD_TOKEN=daemon["token"], FORKD_CONTRACT_SNAPSHOT=daemon["snapshot"],
                           FORKD_CONTRACT_TMP=daemon["tmp"], FORKD_CONTRACT_FILE=daemon["file"])
            r.case("the start of docs/sdk.md, as it stands", lambda: begun(daemon))
            r.case("a program has three more modules, and is built for macOS and Windows too", small)

    r.case("the daemon's traffic is as documented", all_cases)
r.finish()
