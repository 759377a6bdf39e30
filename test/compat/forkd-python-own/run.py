"""The cases of forkd-python, with the package of sdk/python instead of the published one."""

import os
import runpy

here = os.path.dirname(os.path.abspath(__file__))
runpy.run_path(os.path.join(here, "..", "forkd-python", "run.py"), run_name="__main__")
