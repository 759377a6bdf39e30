"""The live tests of sandboxes in the repository of E2B's SDK for JavaScript; e2b-own-js@rig has those of templates.

They import the SDK's source, and get the published package instead. $E2B_OWN_TESTS selects tests, like
vitest -t.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess

import npm
import owntests

PACKAGES = [*npm.sdk("e2b"), "vitest@4.1.12"]
SUITES = ("template",) if owntests.FAKED else ("api", "sandbox")

# One sandbox for each test, one after another, because this is not a load test.
CONFIG = r"""
export default {
  resolve: { alias: [{ find: /^(\.\.\/)+src(\/(index|errors))?(\.js)?$/, replacement: 'e2b' }] },
  test: { include: FILES, testTimeout: LIMIT, hookTimeout: LIMIT, fileParallelism: false, watch: false },
}
"""


def live(path: str) -> bool:
    """Whether the tests of a file use a server. Some have only a fake one (msw), or none, or use files of the checkout."""
    with open(path) as f:
        text = f.read()
    return "msw" not in text and "/src/template/" not in text and any(use in text for use in ("sandboxTest", "Sandbox.create(", "buildTemplateTest", "Template.build"))


def tests(source: str, there: str) -> str:
    packages, env = npm.install(PACKAGES, dict(os.environ))
    env.update(owntests.environment())
    work = os.path.join(packages, "own")  # inside the packages, where the tests find them
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(os.path.join(source, "packages", "js-sdk", "tests"), os.path.join(work, "tests"))
    files = sorted(f for suite in SUITES for f in glob.glob(os.path.join(work, "tests", suite, "**", "*.test.ts"), recursive=True) if live(f))
    config, out = os.path.join(work, "vitest.config.mjs"), os.path.join(there, "results.xml")
    with open(config, "w") as f:
        f.write(CONFIG.replace("FILES", json.dumps(files)).replace("LIMIT", str(owntests.LIMIT * 1000)))
    command = [os.path.join(packages, "node_modules", ".bin", "vitest"), "run", "--config", config, "--root", work,
               "--reporter", "default", "--reporter", "junit", "--outputFile.junit", out]
    if "E2B_OWN_TESTS" in os.environ:
        command += ["-t", os.environ["E2B_OWN_TESTS"]]
    env["NODE_OPTIONS"] = "--import " + os.path.join(os.path.dirname(owntests.__file__), "hostnames.mjs")
    subprocess.run(command, cwd=work, env=env)
    return out


owntests.run("the live tests of E2B's SDK for JavaScript", tests)
