"""Generates src/forkd/_e2b.py, names that differ from E2B's SDK, from sdk/e2b.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SDK = Path(__file__).resolve().parent.parent
TABLE = SDK.parent / "e2b.json"

HEADER = '''# Made from sdk/e2b.json by tools/names.py. Do not edit.
"""Names of E2B's SDK that have another one here: of classes, of what is imported, and of parameters."""

from __future__ import annotations

'''


def texts(table: dict[str, Any]) -> dict[str, str]:
    """The texts of Python."""
    both = {name: text if isinstance(text, list) else [text] for name, text in table.items()}
    return {name: text[0] for name, text in both.items() if text[0] is not None}


def rows(table: dict[str, Any], indent: str) -> str:
    return "".join(f"{indent}{quoted(name)}: {quoted(text)},\n" for name, text in texts(table).items())


def quoted(text: str) -> str:
    """A string literal in ruff's style."""
    return f"'{text}'" if '"' in text else f'"{text}"'


def classes(name: str, table: dict[str, Any]) -> str:
    out = [f"{name}: dict[str, dict[str, str]] = {{\n"]
    for kind, names in table.items():
        out.append(f'    "{kind}": {{\n{rows(names, " " * 8)}    }},\n')
    return "".join([*out, "}\n"])


def files() -> dict[Path, str]:
    table = json.loads(TABLE.read_text())
    parts = [classes("ATTRIBUTES", table["attributes"]), classes("STATICS", table["statics"])]
    for name in ("module", "parameters"):
        parts.append(f"{name.upper()}: dict[str, str] = {{\n{rows(table[name], ' ' * 4)}}}\n")
    return {SDK / "src/forkd/_e2b.py": HEADER + "\n".join(parts)}
