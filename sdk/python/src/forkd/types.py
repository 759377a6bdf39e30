"""The messages of the API."""

from ._builds import BuildProgress as BuildProgress
from ._wire import *  # noqa: F403
from ._wire import __all__ as _messages

__all__ = ["BuildProgress"]
__all__ += _messages
