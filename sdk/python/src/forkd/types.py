"""The messages of the API."""

from ._wire import *  # noqa: F403
from ._wire import __all__ as __all__
