"""Runs the tests of a project in parallel, with a warm fork for every file."""

from forkd import Sandbox

TESTS = {
    "test_a.py": "def test_sum(): assert 1 + 1 == 2",
    "test_b.py": "def test_str(): assert 'a' * 2 == 'aa'",
    "test_c.py": "def test_bad(): assert 1 == 2",
}
RUN = "import runpy, sys; ns = runpy.run_path(sys.argv[1]); [f() for n, f in ns.items() if n.startswith('test_')]"

with Sandbox.create("python-numpy") as sandbox:
    home = sandbox.commands.run("mktemp -d").stdout.strip()
    for name, code in TESTS.items():
        sandbox.files.write(f"{home}/{name}", code)
    with sandbox.fork(len(TESTS)) as children:
        files = dict(zip([c.id for c in children], TESTS, strict=True))
        results = children.map(lambda c: c.commands.run(["python3", "-c", RUN, f"{home}/{files[c.id]}"]))
    for name, result in zip(TESTS, results, strict=True):
        print(f"{name}: {'passed' if result.ok else 'failed: ' + result.stderr.splitlines()[-1]}")
    sandbox.files.remove(home)
