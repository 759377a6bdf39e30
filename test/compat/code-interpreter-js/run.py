"""The npm package @e2b/code-interpreter. run.mjs has the cases."""

from __future__ import annotations

import os

import npm
from report import AGE

# An older package runs code only at https://49999-ID.DOMAIN.
npm.run(os.path.dirname(os.path.abspath(__file__)), npm.sdk("e2b", "@e2b/code-interpreter"), by_host_names=AGE != "")
