"""A program that answers for a library of tasks: player.py bfcl|gem|reasoning_gym|...

Requests and answers are JSON, one per line: {"ask": "step", "with": ["left"]}, and then
{"answer": ...} or {"error": "..."}. It runs in a process of its own, and usually in another Python
environment, because these libraries need other versions of packages than ALE-JAX, seed the random
numbers of their whole process, and configure its logging. It imports nothing of ours.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import json
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

MEMORY_BYTES = 4 << 30  # a reply such as 9**9**9**9 must not take the machine's
SETS_OF_GEM = ("game:", "rg:")  # the others fetch data


class GemLibrary:
    """One environment of gem-llm at a time."""

    def __init__(self) -> None:
        import gem.envs.registration

        self._registration = gem.envs.registration

    def names(self) -> list[str]:
        known = self._registration.ENV_REGISTRY
        return sorted(name for name in known if name.startswith(SETS_OF_GEM))

    def make(self, name: str) -> str:
        self._env = self._registration.make(name)
        return name

    def reset(self, seed: int) -> list[Any]:
        observation, info = self._env.reset(seed)
        return [str(observation), info]

    def step(self, action: str) -> list[Any]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        return [str(observation), float(reward), bool(terminated), bool(truncated), info]


class TextArenaLibrary:
    """One single-player environment of textarena at a time."""

    def __init__(self) -> None:
        import textarena
        from textarena.envs.registration import ENV_REGISTRY

        self._library, self._specs = textarena, ENV_REGISTRY

    def names(self) -> list[str]:
        """Those that -raw tells as lists of tuples are left out. Whether there is one player is
        read, because some modules cannot be imported."""
        texts = {name for name in self._specs if not name.endswith("-raw")}
        return sorted(name for name in texts if "SinglePlayerState" in self._source(name))

    def make(self, name: str) -> str:
        self._env = self._library.make(name)
        return name

    def reset(self, seed: int) -> list[Any]:
        self._env.reset(num_players=1, seed=seed)
        return [self._env.get_observation()[1], {}]

    def step(self, action: str) -> list[Any]:
        done, info = self._env.step(action)
        if not done:
            return [self._env.get_observation()[1], 0.0, False, False, info]
        rewards, _ = self._env.close()
        return ["", float((rewards or {}).get(0, 0.0)), True, False, info]

    def _source(self, name: str) -> str:
        module = self._specs[name].entry_point.partition(":")[0].removeprefix("textarena.")
        folder = os.path.dirname(self._library.__file__)
        try:
            with open(os.path.join(folder, *module.split(".")) + ".py") as file:
                return file.read()
        except FileNotFoundError:  # some entries have no module
            return ""


class ReasoningGymLibrary:
    """All sets of reasoning-gym. An entry is the only one of the set with its seed."""

    def __init__(self) -> None:
        import reasoning_gym

        self._create = reasoning_gym.create_dataset
        self._names = reasoning_gym.factory.DATASETS
        self._entry = functools.lru_cache(maxsize=256)(self._made)

    def names(self) -> list[str]:
        return sorted(set(self._names) - {"composite"})  # which is made of others, by arguments

    def question(self, name: str, seed: int) -> str:
        return str(self._entry(name, seed)[1]["question"])

    def score(self, name: str, seed: int, answer: str) -> float:
        dataset, entry = self._entry(name, seed)
        try:
            return float(dataset.score_answer(answer=answer, entry=entry))
        except Exception:  # of any kind: some sets raise where an answer is no number
            return 0.0

    def oracle(self, name: str, seed: int) -> str | None:
        answer = self._entry(name, seed)[1]["answer"]
        solves = isinstance(answer, str) and self.score(name, seed, answer) == 1.0
        return answer if solves else None

    def _made(self, name: str, seed: int) -> tuple[Any, Any]:
        random.seed(seed)  # a set draws from it, and would not repeat
        dataset = self._create(name, size=1, seed=seed)
        return dataset, dataset[0]


class Guard:
    """Keeps replies from acting, while it is up: some libraries evaluate them as Python.

    It refuses evaluated code that sets names, or uses hidden attributes or what leads to them, and
    whatever starts, writes or connects. It keeps replies from changing later scores; what they
    reach beyond their process, `confined` decides.
    """

    FORBIDDEN = frozenset(
        (
            *("breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals"),
            *("input", "locals", "open", "quit", "setattr", "vars"),
        )
    )
    ACTS = ("ctypes.", "os.", "shutil.", "socket.", "subprocess.", "sys._", "signal.", "fcntl.")
    READS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")
    WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def __init__(self) -> None:
        self._is_up = False
        sys.addaudithook(self._hear)

    def __enter__(self) -> None:
        self._is_up = True

    def __exit__(self, *error: object) -> None:
        self._is_up = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_up:
            return
        if event == "exec":
            is_refused = arguments[0].co_filename == "<string>" and any(_acts(arguments[0]))
        elif event == "open":
            is_refused = bool((arguments[2] or 0) & self.WRITE_FLAGS)
        else:
            is_refused = event.startswith(self.ACTS) and event not in self.READS
        if is_refused:
            raise PermissionError(f"a reply must not {event}")


def _acts(code: CodeType) -> Iterator[bool]:
    yield any("__" in name or name in Guard.FORBIDDEN for name in code.co_names)
    stores = ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")
    yield any(each.opname in stores for each in dis.get_instructions(code))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _acts(inner)


def _beside(module: str) -> Any:
    """Imports a module of this folder, which is not where others are imported from."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{module}.py")
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


LIBRARIES: dict[str, Callable[[], Any]] = {
    "verifiers": lambda: _beside("verifiers_tasks").VerifiersLibrary(),
    "bfcl": lambda: _beside("bfcl_tasks").BfclLibrary(),
    "gem": GemLibrary,
    "reasoning_gym": ReasoningGymLibrary,
    "textarena": TextArenaLibrary,
}
OF_REPLIES = ("step", "score")


def main(name: str) -> None:
    """Answers requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not be taken for an answer
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    library, guard = None, Guard()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            library = library or LIBRARIES[name]()
            answer = {"answer": _answer(library, guard, request["ask"], request["with"])}
        except Exception as error:  # of any kind; it is reported to the caller
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=str), file=answers, flush=True)


def _answer(library: Any, guard: Guard, method: str, arguments: list[Any]) -> Any:
    if method not in OF_REPLIES:
        return getattr(library, method)(*arguments)
    with guard:
        return getattr(library, method)(*arguments)


if __name__ == "__main__":
    main(sys.argv[1])
