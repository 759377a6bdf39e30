# Made from _async/__init__.py by tools/unasync.py. Do not edit.
"""One half of the SDK. The sync half is made from the async one by tools/unasync.py."""
