"""Generates src/forkd/_wire.py, a frozen dataclass for every message of the API, from api/openapi.yaml.

In an answer, a field that the daemon omits has a zero value, and unknown fields are ignored, so that
answers of other versions can be read. A message that is sent (its schema allows no other fields) requires
the required fields, and omits fields that are None.
"""

from __future__ import annotations

import keyword
import textwrap
from pathlib import Path
from typing import Any

import yaml

SDK = Path(__file__).resolve().parent.parent
DOCUMENT = SDK.parent.parent / "api/openapi.yaml"
REF = "#/components/schemas/"

HEADER = '''# Made from api/openapi.yaml by tools/wire.py. Do not edit.
"""The messages of the API."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as _field
from typing import Any, ClassVar, Literal

from ._record import Nested, Record

'''
SCALARS = {"string": ("str", '""'), "integer": ("int", "0"), "number": ("float", "0.0"), "boolean": ("bool", "False")}


class Wire:
    def __init__(self, schemas: dict[str, Any]) -> None:
        self.schemas = schemas
        self.done: dict[str, str] = {}  # the classes, in an order in which each is defined before it is used

    def merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema whose parts (allOf) are merged."""
        if "allOf" not in schema:
            return schema
        out: dict[str, Any] = {"properties": {}, "required": [], "description": schema.get("description", "")}
        for part in schema["allOf"]:
            if "$ref" in part:
                part = self.schemas[part["$ref"].removeprefix(REF)]
            part = self.merged(part)
            out["properties"] |= part.get("properties", {})
            out["required"] += part.get("required", [])
        return out

    def is_class(self, name: str) -> bool:
        return "properties" in self.merged(self.schemas[name])

    def type_of(self, schema: dict[str, Any], sent: bool) -> tuple[str, str, str]:
        """The Python type, its zero value, and the class of its values or elements."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(REF)
            if self.is_class(name):
                self.add(name)
                return name, f"_field(default_factory={name})", name
            return self.type_of(self.schemas[name], sent)
        kind = schema.get("type")
        if isinstance(kind, list):  # ["integer", "null"]
            kind = next(k for k in kind if k != "null")
        if kind == "array":
            of, _, cls = self.type_of(schema["items"], sent)
            return f"list[{of}]", "_field(default_factory=list)", cls
        if kind == "object":
            more = schema.get("additionalProperties")
            of = "Any"
            if isinstance(more, dict):
                of = self.type_of(more, sent)[0]
                if isinstance(more.get("type"), list):
                    of += " | None"
            if schema.get("properties"):
                raise SystemExit("a message inside of a message must be a schema of its own, or be listed in FIELDS")
            return f"dict[str, {of}]", "_field(default_factory=dict)", ""
        if kind is None:
            return "Any", "None", ""
        if sent and "enum" in schema:
            values = ", ".join(repr(v).replace("'", '"') for v in schema["enum"] if v)
            return f"Literal[{values}]", "", ""
        return *SCALARS[kind], ""

    def inline(self, name: str, field: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Gives a message inside another one a name, made of both names."""
        inner = schema.get("items", schema)
        if "properties" not in inner:
            return schema
        inner_name = name + "".join(w.capitalize() for w in field.split("_"))
        self.schemas[inner_name] = inner
        ref = {"$ref": REF + inner_name, "description": schema.get("description", "")}
        return (
            {"type": "array", "items": ref, "description": schema.get("description", "")} if "items" in schema else ref
        )

    def add(self, name: str) -> None:
        if name in self.done:
            return
        self.done[name] = ""  # in progress
        schema = self.merged(self.schemas[name])
        sent = schema.get("additionalProperties") is False
        required = schema.get("required", [])
        lines, nested, renamed = [], {}, {}
        for key, value in schema["properties"].items():
            value = self.inline(name, key, value)
            python = key + "_" if keyword.iskeyword(key) else key
            if python != key:
                renamed[python] = key
            of, zero, cls = self.type_of(value, sent)
            if cls:
                nested[python] = cls
            if key not in required:
                of, zero = f"{of} | None" if of != "Any" else of, "None"
            doc = value.get("description", "")
            lines.append(f"    {python}: {of}" + ("" if sent and key in required else f" = {zero}"))
            if doc:
                lines.append(string(doc, "    "))
        out = [
            "\n@dataclass(frozen=True, kw_only=True, repr=False, eq=False)",
            f"class {name}(Record):",
            string(sentence(schema.get("description") or f"The message {name} of the API."), "    "),
            "",
            *lines,
        ]
        if nested:
            out.append("    _nested: ClassVar[Nested] = {")
            out += [f'        "{k}": {v},' for k, v in nested.items()]
            out.append("    }")
        if renamed:
            out.append(f"    _renamed: ClassVar[dict[str, str]] = {renamed!r}".replace("'", '"'))
        del self.done[name]
        self.done[name] = "\n".join(out) + "\n\n"


def sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def string(text: str, indent: str) -> str:
    """A docstring, wrapped."""
    text = " ".join(text.split()).replace("\\", "\\\\").replace('"""', "'''")
    if text.endswith('"'):
        text += " "
    if len(text) < 105:
        return f'{indent}"""{text}"""'
    return textwrap.fill(f'"""{text}"""', 115, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def files() -> dict[Path, str]:
    wire = Wire(yaml.safe_load(DOCUMENT.read_text())["components"]["schemas"])
    for name in list(wire.schemas):
        if wire.is_class(name):
            wire.add(name)
    names = "".join(f'    "{name}",\n' for name in sorted(wire.done))
    return {SDK / "src/forkd/_wire.py": HEADER + "".join(wire.done.values()) + f"\n__all__ = [\n{names}]\n"}
