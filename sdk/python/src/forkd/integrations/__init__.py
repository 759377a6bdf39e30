"""Adapters that let other frameworks use forkd's sandboxes. Each module needs the framework that it is named
after, which an extra of this package installs: pip install 'forkd[deepagents]'. Nothing is imported here."""
