"""The npm package e2b. run.mjs has the cases."""

from __future__ import annotations

import os

import npm

npm.run(os.path.dirname(os.path.abspath(__file__)), npm.sdk("e2b"))
