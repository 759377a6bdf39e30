"""Adapters that let other frameworks use forkd's sandboxes. Each module is named after a framework and needs it. An
extra of this package installs the framework: pip install 'forkd[deepagents]'. This module imports no adapter."""
