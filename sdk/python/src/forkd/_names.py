"""Errors for E2B's names of attributes and parameters, which give the name here. docs/sdk.md lists all names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from ._e2b import ATTRIBUTES, PARAMETERS, STATICS

Kind = TypeVar("Kind", bound=type)

COROUTINE, KEYWORDS = 0x80, 0x08  # flags of co_flags: async function; any keyword parameters


class NamesOfE2B(type):
    """If a class lacks a name of E2B's SDK, makes its error give the name here."""

    if not TYPE_CHECKING:  # otherwise a type checker would accept every name

        def __getattr__(cls, name: str) -> Any:
            here = STATICS.get(cls.__name__.removeprefix("Async"), {}).get(name)
            raise AttributeError(
                f"{cls.__name__} has no {name}" + (f"; here it is {here}" if here else ""), name=name, obj=cls
            )


def knows_e2b(kind: Kind) -> Kind:
    """Makes the errors for E2B's names of attributes and parameters, which a class lacks, give the names
    here."""
    name = kind.__name__
    attributes = ATTRIBUTES.get(name.removeprefix("Async"), {})

    def __getattr__(self: object, name: str) -> Any:
        here = f"; here it is {attributes[name]}" if name in attributes else ""
        raise AttributeError(f"{type(self).__name__} has no {name}{here}", name=name, obj=self)

    kind.__getattr__ = __getattr__  # type: ignore[attr-defined]
    for attribute, member in list(vars(kind).items()):
        if attribute.startswith("_") and attribute != "__init__":
            continue
        if isinstance(member, classmethod):
            setattr(kind, attribute, classmethod(checked(f"{name}.{attribute}", member.__func__)))
        elif hasattr(member, "__code__"):
            setattr(kind, attribute, checked(f"{name}.{attribute}", member))
    return kind


def checked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps call so that parameters with E2B's names raise an error that gives the name here."""
    inner = call
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code = inner.__code__
    if code.co_flags & KEYWORDS:
        return call
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    others = {parameter: here for parameter, here in PARAMETERS.items() if parameter not in own}
    kind, _, method = name.partition(".")
    static = STATICS.get(kind.removeprefix("Async"), {}).get(method) if own[:1] == ("self",) else None

    def refuse(args: tuple[Any, ...], given: Iterable[str]) -> None:
        if static is not None and (not args or isinstance(args[0], str)):
            raise TypeError(f"{name}() is a method of a sandbox; of an id it is {static}")
        for parameter in given:
            if parameter in others:
                raise TypeError(f"{name}() has no parameter {parameter}; here it is {others[parameter]}")

    if call is inner and code.co_flags & COROUTINE:

        @wraps(call)
        async def later(*args: Any, **given: Any) -> Any:
            refuse(args, given)
            return await call(*args, **given)

        return later

    @wraps(call)
    def now(*args: Any, **given: Any) -> Any:
        refuse(args, given)
        return call(*args, **given)

    return now
