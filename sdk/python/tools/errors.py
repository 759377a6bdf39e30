"""Generates src/forkd/_codes.py, one exception class per code, from the table of docs/errors.md."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent
DOCUMENT = SDK.parent.parent / "docs/errors.md"
ROW = re.compile(r'^\| <a id="(\w+)"></a>`\w+` \| (\d+) \| [^|]*\| ([^|]+) \| (.+) \|$', re.M)

# Codes whose class is also one of Python's own errors, so that code can catch it without knowing forkd.
ALSO = {"timeout": "builtins.TimeoutError"}

# The code that is used for a status if this version does not know the daemon's code.
FAMILY = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    405: "method_not_allowed",
    409: "conflict",
    413: "body_too_large",
    426: "upgrade_required",
    429: "too_many_requests",
    500: "internal",
    502: "sandbox_failed",
    503: "busy",
    504: "timeout",
    507: "no_space",
}

HEADER = '''# Made from docs/errors.md by tools/errors.py. Do not edit.
"""One class for every code of an error."""

from __future__ import annotations

import builtins

from ._errors import ForkdError

'''


def class_of(code: str) -> str:
    return "".join(word.capitalize() for word in code.split("_")) + "Error"


def text(fix: str) -> str:
    """The help text, wrapped."""
    return textwrap.fill(
        f"What helps: {fix}.", 110, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )


def codes() -> list[tuple[str, int, str, str]]:
    """Code, status, meaning and help of every row."""
    rows = [(c, int(s), meaning.strip(), fix.strip()) for c, s, meaning, fix in ROW.findall(DOCUMENT.read_text())]
    if not rows:
        raise SystemExit(f"{DOCUMENT} has no table of codes")
    return rows


def files() -> dict[Path, str]:
    rows = codes()
    out = [HEADER]
    for code, status, meaning, fix in rows:
        bases = "ForkdError" + (f", {ALSO[code]}" if code in ALSO else "")
        doc = f'    """{meaning} ({code}, {status}).\n\n{text(fix)}\n    """\n'
        out.append(f"\nclass {class_of(code)}({bases}):\n{doc}\n")
    out.append("\nBY_CODE: dict[str, type[ForkdError]] = {\n")
    out += [f'    "{code}": {class_of(code)},\n' for code, *_ in rows]
    out.append("}\n\nBY_STATUS: dict[int, type[ForkdError]] = {\n")
    known = {code for code, *_ in rows}
    out += [f"    {status}: {class_of(code)},\n" for status, code in FAMILY.items() if code in known]
    out.append("}\n\n__all__ = [\n")
    out += [f'    "{class_of(code)}",\n' for code, *_ in rows]
    out.append("]\n")
    return {SDK / "src/forkd/_codes.py": "".join(out)}
