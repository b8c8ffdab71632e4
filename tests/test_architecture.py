"""The rules that the whole tree keeps: which way imports point, what is never done, and where.

Each rule is a function from a tree to its breaches. It is held against this repository, and against
a small tree made here that breaks it.
"""

from __future__ import annotations

import ast
import graphlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_tree import Module, SourceTree, read_tree

ROOT = Path(__file__).parents[1]
MAX_LINES = 400

LIBRARY_HOMES = {
    "ray": ("system",),
    "docker": ("sandbox",),
    **dict.fromkeys(("transformers", "tokenizers", "huggingface_hub"), ("model",)),
    "absl": ("launch", "command_line", "subcommands", "configs"),
    "ml_collections": ("command_line", "configs"),
}

# On a TPU host the chips belong to the one process that imports jax.
JAX_STACK = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
JAX_FREE = (
    "agent",
    "config",
    "sandbox",
    "gateway",
    "rollout",
    "envs",
    "worlds",
    "data",
    "evaluation",
    "recorded",
    "monitor",
    "records",
    "status",
)
ACTORS = ("ale_jax.system.actors.rollout_actor", "ale_jax.system.fleet.actor")

# Imports point downwards. `monitor` stands apart: it writes down what others did.
LAYERS = (
    ("launch", "configs", "entry"),
    ("command_line",),
    ("subcommands",),
    ("system",),
    ("recorded",),
    ("evaluation",),
    ("engine", "rollout", "learn", "gateway", "agent", "envs"),
    ("worlds",),
    ("sandbox",),
    ("algo", "model", "data"),
    ("config", "records", "files", "errors", "strict_json", "tagged_text"),
    ("status",),
)
ALSO_ALLOWED = {
    ("system", "monitor"): "the controller is whom a person watches",
    ("ale_jax", "entry"): "the package offers what its entry does",
    ("launch", "entry"): "the command line does what Python can do",
    ("entry", "monitor"): "an evaluation is returned as it is written down",
    ("system", "configs"): "a name of a preset has to mean that preset",
    ("config", "sandbox"): "what a sandbox may use is part of a run's config",
    ("monitor", "status"): "a closed list of statuses is written down by its names",
    ("records", "config"): "a trajectory says how its tokens were drawn",
    ("evaluation", "monitor"): "a rate has one interval, and untrusted names are shown safely",
    ("monitor", "files"): "what it writes down is written whole",
    ("gateway", "engine"): "the custody of tokens asks the engine for them",
    ("rollout", "agent"): "an episode is the agent's loop around a policy",
    ("rollout", "gateway"): "an episode's policy is behind the gateway",
    ("worlds", "agent"): "a bridge's tasks are acted in by the agent's tools",
    ("envs", "agent"): "a world is acted in by the agent's tools, and has oracles",
}

CODE_FROM_DATA = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "runpy"}
DANGEROUS_CALLS = {"eval", "exec", "compile", "os.system", "yaml.load", "torch.load"}
# The runner's source, which is executed inside sandboxes, is our own: see sandbox/async_sandbox.py.
DANGER_ALLOWED = {
    ("ale_jax/command_line.py", "runpy"): "a config is a program that the user names",
}

UNTELLING_NAMES = ("utils", "types", "helpers", "common", "misc")

KNOWN_HOSTS = {"arxiv.org", "keepachangelog.com", "www.apache.org", "localhost", "127.0.0.1"}
KNOWN_HOSTS |= {"sandboxes", "www.w3.org"}  # an example, of nobody; the name of SVG's elements
# They only look like hosts: the prefixes of what Kubernetes' objects and labels are called.
KNOWN_HOSTS |= {"kubernetes.io", "rbac.authorization.k8s.io"}
KNOWN_HOSTS |= {"ray.io", "networking.k8s.io", "pod-security.kubernetes.io"}
KNOWN_HOSTS |= {"jobset.x-k8s.io", "jobset.sigs.k8s.io", "alpha.jobset.sigs.k8s.io"}
KNOWN_HOSTS |= {"batch.kubernetes.io", "cloud.google.com", "google.com"}
KNOWN_HOSTS |= {"metadata.google.internal"}  # by which a machine of Google's learns its place
# They stand for what an operator writes; 10.0.5.7 is a private address in examples.
KNOWN_HOSTS |= {"HOST", "USER", "10.0.5.7"}
HOST = re.compile(r"://([\w.-]+)|([\w-]+(?:\.[\w-]+)*\.(?:io|com|net|org|dev))/")
MACHINE_PATH = re.compile(r"/(?:home|Users|root)/\w")


def libraries_stay_at_home(tree: SourceTree) -> Iterator[str]:
    for module in tree.modules.values():
        for library in {each.name.partition(".")[0] for each in module.imports}:
            if part_of(module.name) not in LIBRARY_HOMES.get(library, (part_of(module.name),)):
                yield f"{module.path}: {library} belongs to {LIBRARY_HOMES[library]}"


def nothing_here_loads_jax(tree: SourceTree) -> Iterator[str]:
    for name in tree.modules:
        if part_of(name) in JAX_FREE or name in ACTORS:
            for library, chain in tree.libraries_loaded_by(name).items():
                if library in JAX_STACK:
                    yield f"{' -> '.join(chain)} -> {library}"


def imports_point_downwards(tree: SourceTree) -> Iterator[str]:
    layer = {part: number for number, parts in enumerate(LAYERS) for part in parts}
    for module in tree.modules.values():
        for source, target in arrows(tree, module):
            down = source in layer and target in layer and layer[source] < layer[target]
            if not down and (source, target) not in ALSO_ALLOWED:
                yield f"{module.path}: {source} -> {target}"


def modules_only_define(tree: SourceTree) -> Iterator[str]:
    for module in tree.modules.values():
        for statement in module.syntax.body:
            if not isinstance(statement, DEFINITIONS) and not _is_harmless(statement):
                yield f"{module.path}:{statement.lineno}: {ast.unparse(statement):.60}"


def data_never_becomes_code(tree: SourceTree) -> Iterator[str]:
    for module in tree.modules.values():
        for danger in dangers(module):
            if (str(module.path), danger) not in DANGER_ALLOWED:
                yield f"{module.path}: {danger}"


def files_are_short(tree: SourceTree) -> Iterator[str]:
    for path, text in tree.texts.items():
        if path.suffix in (".py", ".sh", ".jinja") and text.count("\n") > MAX_LINES:
            yield f"{path}: {text.count(chr(10))} lines"


def names_tell(tree: SourceTree) -> Iterator[str]:
    return (str(path) for path in tree.texts if path.stem in UNTELLING_NAMES)


def a_package_has_one_class_of_a_name(tree: SourceTree) -> Iterator[str]:
    """So that whoever reads or looks for a name finds the one thing that it means."""
    seen: dict[tuple[str, str], Path] = {}
    for module in tree.modules.values():
        for each in module.syntax.body:
            if isinstance(each, ast.ClassDef):
                first = seen.setdefault((part_of(module.name), each.name), module.path)
                if first != module.path:
                    yield f"{module.path}: class {each.name}, as in {first}"


def no_machine_is_named(tree: SourceTree) -> Iterator[str]:
    for path, text in tree.texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            hosts = {with_scheme or bare for with_scheme, bare in HOST.findall(line)}
            if hosts - KNOWN_HOSTS or MACHINE_PATH.search(line):
                yield f"{path}:{number}: {line.strip():.80}"


DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)


def _is_harmless(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        # A gradient that is written out belongs to its function's definition.
        gradient = ast.unparse(statement.value).partition("(")[0].endswith(".defvjp")
        return gradient or isinstance(statement.value, ast.Constant)
    condition = ast.unparse(statement.test) if isinstance(statement, ast.If) else ""
    return condition in ("TYPE_CHECKING", "__name__ == '__main__'")


def part_of(name: str) -> str:
    """The part of the system that a module is of: "algo" for ale_jax.algo.ipa, "envs" for its."""
    top, _, rest = name.partition(".")
    return rest.partition(".")[0] if top == "ale_jax" and rest else top


def arrows(tree: SourceTree, module: Module) -> set[tuple[str, str]]:
    source = part_of(module.name)
    targets = (tree.module_of(each.name) for each in module.imports)
    return {(source, part_of(t)) for t in targets if t and part_of(t) != source}


def dangers(module: Module) -> set[str]:
    found = {each.name.partition(".")[0] for each in module.imports} & CODE_FROM_DATA
    for call in (node for node in ast.walk(module.syntax) if isinstance(node, ast.Call)):
        found |= {ast.unparse(call.func)} & DANGEROUS_CALLS
        for keyword in call.keywords:
            if keyword.arg in ("allow_pickle", "shell") and ast.unparse(keyword.value) != "False":
                found.add(keyword.arg)
    return found


def imports_have_no_circles(tree: SourceTree) -> Iterator[str]:
    """Between files, lazy imports and those for type checkers included: a file in a circle cannot
    be read, or moved, without the others."""
    needs = {name: modules_needed(tree, module) for name, module in tree.modules.items()}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        yield " -> ".join(error.args[1])


def modules_needed(tree: SourceTree, module: Module) -> set[str]:
    found = {tree.module_of(each.name) for each in module.imports} - {None, module.name}
    # A module's own packages are loaded with it, and import nothing of it.
    return {name for name in found if not module.name.startswith(f"{name}.")}


BREACHES = [
    (imports_have_no_circles, "ale_jax/rollout/round.py", "import ale_jax.rollout.round_two"),
    (libraries_stay_at_home, "ale_jax/agent/loop.py", "import ray"),
    (
        libraries_stay_at_home,
        "ale_jax/system/rollouts/workers.py",
        "def f():\n    from docker import errors",
    ),
    (libraries_stay_at_home, "envs/shell/env.py", "from tokenizers import Tokenizer"),
    (libraries_stay_at_home, "ale_jax/system/doctor.py", "import ml_collections as mc"),
    (nothing_here_loads_jax, "ale_jax/data/packing.py", "import jax.numpy as jnp"),
    (nothing_here_loads_jax, "ale_jax/config/model.py", "import jax"),
    (
        nothing_here_loads_jax,
        "ale_jax/system/actors/rollout_actor.py",
        "import ale_jax.engine.far",
    ),
    (imports_point_downwards, "ale_jax/algo/ipa.py", "from ale_jax.engine import far"),
    (imports_point_downwards, "ale_jax/config/run.py", "import ale_jax.records"),
    (imports_point_downwards, "ale_jax/rollout/play.py", "import ale_jax.envs.shell.near"),
    (imports_point_downwards, "ale_jax/model/moe.py", "import ale_jax.monitor"),
    (imports_point_downwards, "ale_jax/novelty.py", "import ale_jax.records"),
    (modules_only_define, "ale_jax/learn/step.py", "import os\nos.umask(0)"),
    (modules_only_define, "configs/mine.py", "for i in range(3):\n    pass"),
    (data_never_becomes_code, "ale_jax/data/replay.py", "from pickle import loads"),
    (data_never_becomes_code, "ale_jax/rollout/policy_client.py", "def f(s):\n    return eval(s)"),
    (
        data_never_becomes_code,
        "envs/shell/env.py",
        "def f(n, p):\n    n.load(p, allow_pickle=True)",
    ),
    (data_never_becomes_code, "ale_jax/sandbox/a.py", "def f(s, c):\n    s.run(c, shell=True)"),
    (files_are_short, "tests/test_long.py", "\n" * 401),
    (names_tell, "ale_jax/model/utils.py", ""),
    (a_package_has_one_class_of_a_name, "ale_jax/rollout/zone/twin.py", "class Far: ..."),
    (no_machine_is_named, "docs/setup.md", "cd /" + "home/someone/ale"),
    (no_machine_is_named, ".ci/run", "pip install --index-url https:" + "//mirror.example/simple"),
    (no_machine_is_named, "launch/image.sh", "docker pull registry.example" + ".com/ale"),
]
RULES = sorted({rule for rule, _, _ in BREACHES}, key=lambda rule: rule.__name__)

# What a planted module may lead to: `far` loads jax, `near` is in order.
NEIGHBOURS = {
    "ale_jax/records.py": "import numpy",
    "ale_jax/monitor/__init__.py": "",
    "ale_jax/engine/far.py": "import jax",
    "ale_jax/rollout/near.py": "class Far: ...",
    "ale_jax/rollout/round_two.py": "def f():\n    import ale_jax.rollout.round",
    "envs/shell/near.py": "from ale_jax import records",
}


@pytest.fixture(scope="module")
def repository() -> SourceTree:
    return read_tree(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule, repository):
    assert len(repository.modules) > 50 and "ale_jax.launch" in repository.modules
    assert list(rule(repository)) == []


@pytest.mark.parametrize(
    ("rule", "path", "text"), BREACHES, ids=[f"{r.__name__}-{path}" for r, path, _ in BREACHES]
)
def test_a_breach_is_found_where_it_is(rule, path, text, tmp_path):
    plant(tmp_path, NEIGHBOURS)
    assert list(rule(read_tree(tmp_path))) == []
    plant(tmp_path, {path: text})
    (breach,) = rule(read_tree(tmp_path))
    assert Path(path).stem in breach


def test_what_is_put_off_is_not_loaded(tmp_path):
    text = "def f():\n    import jax\nif TYPE_CHECKING:\n    import flax\ntry:\n    import optax\n"
    plant(tmp_path, {"ale_jax/agent/loop.py": text + "except ImportError:\n    pass"})
    assert read_tree(tmp_path).libraries_loaded_by("ale_jax.agent.loop").keys() == {"optax"}


def test_a_package_is_loaded_with_its_module_and_relative_names_are_resolved(tmp_path):
    plant(tmp_path, {"ale_jax/agent/__init__.py": "from .deep import x"})
    plant(tmp_path, {"ale_jax/agent/deep.py": "import jax", "envs/a.py": "import ale_jax.agent"})
    assert "jax" in read_tree(tmp_path).libraries_loaded_by("ale_jax.envs.a")


def test_where_a_working_tree_of_git_lies_is_no_breach(tmp_path):
    plant(tmp_path, {".git": "gitdir: /" + "home/someone/ale/.git"})
    assert list(no_machine_is_named(read_tree(tmp_path))) == []


def test_no_exception_outlives_its_need(repository):
    modules = repository.modules.values()
    assert ALSO_ALLOWED.keys() <= {a for m in modules for a in arrows(repository, m)}
    assert DANGER_ALLOWED.keys() == {(str(m.path), d) for m in modules for d in dangers(m)}


IMPORT_ALL = """
import importlib, os, pathlib, pkgutil, sys, threading
for top in sys.argv[1:]:
    for found in pkgutil.walk_packages(importlib.import_module(top).__path__, top + "."):
        importlib.import_module(found.name)
for thread in threading.enumerate()[1:]:
    print("thread", thread.name)
for children in pathlib.Path("/proc/self/task").glob("*/children"):
    print(*("process " + pid for pid in children.read_text().split()), sep="\\n", end="")
for file in os.listdir():
    print("file", file)
if "jax" in sys.modules:
    from jax._src import xla_bridge
    if xla_bridge.backends_are_initialized():
        print("devices")
"""


def effects_of_importing(root: Path, packages: tuple[str, ...], folder: Path) -> str:
    """What importing every module of `packages` did, in a new process that stands in `folder`."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    line = [sys.executable, "-c", IMPORT_ALL, *packages]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.heavy
def test_importing_every_module_has_no_effect(tmp_path):
    assert effects_of_importing(ROOT, ("ale_jax",), tmp_path) == ""


HEAVY = ("jax", "numpy", "ray", "absl", "ml_collections")
IMPORT_CONFIG = f"""
import sys
import ale_jax.config.run
print(*({set(HEAVY)} & sys.modules.keys()))
"""


@pytest.mark.heavy
def test_the_config_of_a_run_is_light(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", IMPORT_CONFIG]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


EFFECTS = {
    "thread": "import threading\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "process": "import subprocess\nchild = subprocess.Popen(['sleep', '1'])",
    "file left": "open('left', 'w').close()",
    "devices": "import jax.numpy as jnp\nZERO_D = jnp.zeros(3)",
    "hello": "print('hello')",
}


@pytest.mark.heavy
@pytest.mark.parametrize(("effect", "text"), EFFECTS.items(), ids=EFFECTS)
def test_an_effect_is_seen(effect, text, tmp_path):
    plant(tmp_path, {"planted/__init__.py": "", "planted/module.py": text})
    folder = tmp_path / "empty"
    folder.mkdir()
    assert effects_of_importing(tmp_path, ("planted",), folder).startswith(effect)


def plant(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
