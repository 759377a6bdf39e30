"""The common parts of all messages of the API."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Self


class Record:
    """A message of the API. Its fields are attributes. As in forkd 0.5, they can also be read like those of
    a dict: info.id and info["id"] are the same."""

    _nested: ClassVar[Nested] = {}
    _renamed: ClassVar[dict[str, str]] = {}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The message for decoded JSON. Unknown fields are ignored."""
        given: dict[str, Any] = {}
        for f in fields(cls):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = data.get(cls._renamed.get(f.name, f.name))
            if value is None:
                continue
            if (of := cls._nested.get(f.name)) is not None:
                value = [of.from_json(v) for v in value] if isinstance(value, list) else of.from_json(value)
            given[f.name] = value
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """The message as a dict for JSON, without fields that are None."""
        out: dict[str, Any] = {}
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value is None:
                continue
            if isinstance(value, Record):
                value = value.to_json()
            elif isinstance(value, list):
                value = [v.to_json() if isinstance(v, Record) else v for v in value]
            out[self._renamed.get(f.name, f.name)] = value
        return out

    # Defined once for all messages: methods for each class would take a third of the time of `import forkd`.

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given if v is not None)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__: ClassVar[None]  # type: ignore[assignment]  # messages contain lists and dicts

    def __getitem__(self, name: str) -> Any:
        if any(f.name == name for f in fields(self)):  # type: ignore[arg-type]
            return getattr(self, name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The field with a name, or default if there is none or it is None."""
        value = getattr(self, name, None) if not name.startswith("_") else None
        return default if value is None else value


Nested = dict[str, type[Record]]
"""Classes of the fields that are messages or lists of messages."""
