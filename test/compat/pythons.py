"""Python interpreters of this host, for packages that need a newer one than Debian's."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys

from report import NotApplicable


def interpreter(oldest: tuple[int, int]) -> str:
    """An interpreter. Besides those in $PATH, $COMPAT_PYTHONS and pyenv may have some."""
    found = [sys.executable, *os.environ.get("COMPAT_PYTHONS", "").split()]
    found += [p for n in range(12, 15) if (p := shutil.which(f"python3.{n}"))]
    found += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.1[2-4].*/bin/python")))
    for program in found:
        got = subprocess.run(
            [program, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        if got.returncode == 0 and oldest <= tuple(map(int, got.stdout.split())) < (3, 14):
            return program
    raise NotApplicable(f"there is no Python {oldest[0]}.{oldest[1]}; COMPAT_PYTHONS may name one")
