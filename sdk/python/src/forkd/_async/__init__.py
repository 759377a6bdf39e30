"""One half of the SDK. The sync half is made from the async one by tools/unasync.py."""
