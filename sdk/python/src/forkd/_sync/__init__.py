# Made from _async/__init__.py by tools/unasync.py. Do not edit.
"""The async half of the SDK, from which tools/unasync.py generates the sync half."""
