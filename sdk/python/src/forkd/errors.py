"""All errors of this package: a class for every code of docs/errors.md, and errors of the client itself."""

from ._codes import *  # noqa: F403
from ._codes import BY_CODE as BY_CODE
from ._codes import __all__ as _codes
from ._errors import (
    BuildFailed,
    CommandFailed,
    ConnectionFailedError,
    ForkdError,
    InputClosedError,
    InvalidArgumentError,
    PartialForkError,
    StreamBrokenError,
)

__all__ = [
    "BuildFailed",
    "CommandFailed",
    "ConnectionFailedError",
    "ForkdError",
    "InputClosedError",
    "InvalidArgumentError",
    "PartialForkError",
    "StreamBrokenError",
]
__all__ += _codes
