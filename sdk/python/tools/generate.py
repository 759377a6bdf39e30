"""Generates all generated files in src/forkd. With --check, it lists outdated files instead."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import errors  # noqa: E402
import names  # noqa: E402
import unasync  # noqa: E402
import wire  # noqa: E402


def files() -> dict[Path, str]:
    return wire.files() | errors.files() | names.files() | unasync.files()


def stale() -> list[Path]:
    """Generated files that are not up to date, and files of _sync that nothing generates."""
    wanted = files()
    there = set(unasync.SOURCE.parent.joinpath("_sync").glob("*.py"))
    left = {p for p in there if p.name not in unasync.BY_HAND} - set(wanted)
    return sorted(left | {p for p, text in wanted.items() if not p.exists() or p.read_text() != text})


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        for path in (found := stale()):
            print(f"{path} is out of date: run tools/generate.py", file=sys.stderr)
        sys.exit(1 if found else 0)
    for path, text in files().items():
        path.write_text(text)
