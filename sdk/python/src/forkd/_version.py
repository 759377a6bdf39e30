"""The version of this package."""

VERSION = "0.6.0"
