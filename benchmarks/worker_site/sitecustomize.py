"""Python imports this module when it starts. In a Ray worker of a run under test, it imports the
module that changes a world for the test, and otherwise it does nothing."""

import importlib
import os
import sys

MODULE = os.environ.get("ALE_WORKER_MODULE")

if MODULE and any(word.endswith("default_worker.py") for word in sys.orig_argv):
    importlib.import_module(MODULE)
