"""Checks arguments before a request is sent. Errors name the parameter that is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import InvalidArgumentError

if TYPE_CHECKING:
    from ._wire import Network

TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
MODES = ("none", "public", "allow", "open")


def wrong(field: str, value: object, want: str) -> InvalidArgumentError:
    shown = repr(value)
    return InvalidArgumentError(
        f"{field}: {shown if len(shown) < 80 else shown[:77] + '...'}: want {want}", field=field
    )


def text(field: str, value: object, empty: bool = False) -> str:
    """A string that JSON and a path can contain."""
    if not isinstance(value, str):
        raise wrong(field, value, "a string")
    if not value and not empty:
        raise wrong(field, value, "a string that is not empty")
    if "\0" in value or not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise wrong(field, value, "text without NUL and without surrogates")
    return value


def name(field: str, value: object) -> str:
    """A tag, or the name of a workspace."""
    if not isinstance(value, str) or not TAG.fullmatch(value):
        raise wrong(field, value, "1 to 128 letters, digits, '.', '_' and '-', not beginning with '.' or '-'")
    return value


def identifier(field: str, value: object) -> str:
    """An id that can be part of a path without quoting."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", value):
        raise wrong(field, value, "an id, such as sb-…")
    return value


def path(field: str, value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return text(field, value)


STEPS = ("second", "minute")


def span(since: object, until: object, step: object) -> list[tuple[str, str]]:
    """The query of a history."""
    if step is not None and step not in STEPS:
        raise wrong("step", step, " or ".join(STEPS))
    values = {"since": since, "until": until, "step": step}
    return [(field, text(field, value)) for field, value in values.items() if value is not None]


def optional_text(field: str, value: object) -> str | None:
    return None if value is None else text(field, value)


def whole(field: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise wrong(field, value, f"a whole number from {least} to {most}")
    return value


DAYS30 = 30 * 24 * 3600.0


def seconds(field: str, value: object, zero: bool = False, most: float = 1e9) -> float | None:
    if value is None:
        return None
    want = f"a number of seconds {'from 0' if zero else 'above 0'} to {most:.0f}"
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise wrong(field, value, want)
    if not (0 < value <= most or zero and value == 0):
        raise wrong(field, value, want)
    return value


def life(field: str, value: object) -> float:
    """The lifetime of a sandbox in seconds; 0: unlimited."""
    got = seconds(field, value, zero=True, most=365 * 24 * 3600.0)
    if got is None:
        raise wrong(field, value, "a number of seconds, or 0 for no end")
    return got


def env(value: object) -> dict[str, str] | None:
    """Variables of an environment."""
    variables = strings("env", value)
    if wrong_names := [name for name in variables or {} if "=" in name]:
        raise wrong("env", wrong_names[0], "a name without '='")
    return variables


def strings(field: str, value: object) -> dict[str, str] | None:
    """A mapping of names to values."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise wrong(field, value, "a mapping of strings to strings")
    for k, v in value.items():
        if not isinstance(k, str) or not k or not isinstance(v, str):
            raise wrong(field, {k: v}, "names and values that are strings")
    return {text(field, k): text(field, v, empty=True) for k, v in value.items()}


def one_of(field: str, value: object, words: Sequence[str]) -> str | None:
    if value is not None and value not in words:
        raise wrong(field, value, " or ".join(words))
    return value  # type: ignore[return-value]  # it is one of words


def command(value: object, field: str = "cmd") -> list[str]:
    """The argv of a command: a list is used as it is, a string is run by /bin/sh -c."""
    if isinstance(value, str):
        return ["/bin/sh", "-c", text(field, value)]
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)) or not value:
        raise wrong(field, value, "a string for /bin/sh, or a list of strings that is not empty")
    if not value[0]:
        raise wrong(field, value, "a program first")
    return [text(field, a, empty=True) for a in value]


def data(field: str, value: object) -> bytes:
    """Bytes as they are, or text as UTF-8. Surrogates in the text that stand for bytes become these
    bytes again."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise wrong(field, value, "str or bytes")


def network(value: Network | str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A network policy: a message, a mapping with its fields, or only a mode."""
    if value is None:
        return None
    if isinstance(value, str):
        return {"mode": one_of("network", value, MODES)}
    body = dict(value) if isinstance(value, Mapping) else value.to_json() if hasattr(value, "to_json") else None
    if body is None:
        raise wrong("network", value, "a Network, or one of " + ", ".join(MODES))
    one_of("network", body.get("mode"), MODES)
    return body


def message(field: str, value: Any) -> dict[str, Any] | None:
    """A message of the API, or a mapping with its fields."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "to_json"):
        return dict(value.to_json())
    raise wrong(field, value, "a message of forkd.types, or a mapping")


def volumes(value: object) -> list[dict[str, str]] | None:
    """The volumes of a sandbox: {"/data": "data:ro"} mounts the volume data at /data, read-only."""
    mounts = []
    for where, what in (strings("volumes", value) or {}).items():
        volume, _, mode = what.partition(":")
        mounts.append({"name": name("volumes", volume), "path": where} | ({"mode": mode} if mode else {}))
        if mode:
            one_of("volumes", mode, ("ro", "copy"))
    return mounts or None


def hold(value: Any) -> dict[str, Any] | None:
    """A hold of requests: a message, a mapping with its fields, or only the names of servers."""
    if value is None or isinstance(value, Mapping) or hasattr(value, "to_json"):
        return message("hold_effects", value)
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise wrong("hold_effects", value, "a list of names of servers, or a Hold")
    return {"hosts": [text("hold_effects", host) for host in value]}


def label_filter(labels: object) -> list[tuple[str, str]]:
    """The query parameters of a label filter: {"job": "7"}, or {"job": None} for any value."""
    if labels is None:
        return []
    if not isinstance(labels, Mapping):
        raise wrong("labels", labels, "a mapping of names to values, or to None for any value")
    return [
        ("label", text("labels", k) if v is None else f"{text('labels', k)}={text('labels', v, empty=True)}")
        for k, v in labels.items()
    ]


def given(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {k: v for k, v in fields.items() if v is not None}
