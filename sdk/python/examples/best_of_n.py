"""Tries several fixes of a failing program concurrently, and keeps the sandbox of the fix that works."""

from forkd import Sandbox, best_of

BROKEN = "def mean(xs): return sum(xs) / len(x)"
FIXES = ["s/len(x)/len(xs)/", "s/sum(xs)/0/", "s/len(x)/2/"]
CHECK = "from mean import mean; print(sum(mean(xs) == want for xs, want in [([2, 4], 3), ([3], 3), ([1, 2, 3], 2)]))"

with Sandbox.create("python-numpy") as sandbox:
    home = sandbox.commands.run("mktemp -d").stdout.strip()
    sandbox.files.write(f"{home}/mean.py", BROKEN)

    def attempt(fix):
        def run(child):  # runs in a fork of its own; it copies the files because attempts can share a disk
            place = f"{home}/{FIXES.index(fix)}"
            child.commands.run(f"mkdir {place} && sed '{fix}' {home}/mean.py >{place}/mean.py", check=True)
            return child.commands.run(["python3", "-c", CHECK], cwd=place)

        return run

    best = best_of(sandbox, [attempt(f) for f in FIXES], lambda s, r: int(r.stdout) if r.ok else None)
    print(f"fix {best.index} passes {best.score:.0f} of 3 checks: {FIXES[best.index]}")
    best.sandbox.kill()
    sandbox.files.remove(home)
