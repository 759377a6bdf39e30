"""What all messages of the API have."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Self


class Record:
    """A message of the API. Its fields are attributes, and can be read by name as those of a dict, as
    programs for forkd 0.5 do: info.id and info["id"] are the same."""

    _nested: ClassVar[Nested] = {}
    _renamed: ClassVar[dict[str, str]] = {}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The message that decoded JSON is. Fields that are not known are ignored."""
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
        """The message as JSON can hold it, without what is None."""
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

    # Once for all messages: to make them for every class would be a third of the time of `import forkd`.

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given if v is not None)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__: ClassVar[None]  # type: ignore[assignment]  # lists and dicts are in them

    def __getitem__(self, name: str) -> Any:
        if any(f.name == name for f in fields(self)):  # type: ignore[arg-type]
            return getattr(self, name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The field of a name, or default if there is none or it is None."""
        value = getattr(self, name, None) if not name.startswith("_") else None
        return default if value is None else value


Nested = dict[str, type[Record]]
"""The classes of fields that are messages, or lists of them."""
