"""Hides torch, an independent reference of some tests, from the processes that tests start.

tensorboardX and transformers load torch if they can, which takes a process a second and a half.
Where ALE-JAX is used, it need not be installed.
"""

import sys

sys.modules["torch"] = None  # import and find_spec answer as if it were not installed
