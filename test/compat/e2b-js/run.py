"""The npm package e2b 2.51.0: run.mjs has the cases."""

from __future__ import annotations

import os

import npm

npm.run(os.path.dirname(os.path.abspath(__file__)), ["e2b@2.51.0"])
