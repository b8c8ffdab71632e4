"""Python imports this module when it starts. In a Ray worker of a run that is to be poisoned, it
lets the code of countdown's world fail for one task of thirteen, and otherwise does nothing."""

import os
import sys

POISON = "ALE_SURVIVAL_POISON"

if os.environ.get(POISON) and any(word.endswith("default_worker.py") for word in sys.orig_argv):
    from importlib.abc import Loader, MetaPathFinder
    from importlib.machinery import PathFinder
    from pathlib import Path

    MODULE, TASKS = "envs.countdown.env", 13
    MARK = os.environ["ALE_SURVIVAL_MARK"]

    class PoisonedLoader(Loader):
        def __init__(self, loader):
            self.create_module, self._exec_module = loader.create_module, loader.exec_module

        def exec_module(self, module):
            self._exec_module(module)
            reset = module.CountdownEnv.reset

            def poisoned(env, seed):
                if seed % TASKS == 0:
                    Path(MARK).touch()
                    raise KeyError(f"injected: task {seed} has no answer")
                return reset(env, seed)

            module.CountdownEnv.reset = poisoned

    class Poisoner(MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != MODULE:
                return None
            spec = PathFinder.find_spec(name, path)
            spec.loader = PoisonedLoader(spec.loader)
            return spec

    sys.meta_path.insert(0, Poisoner())
