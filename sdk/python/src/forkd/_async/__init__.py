"""The async half of the SDK, from which tools/unasync.py generates the sync half."""
