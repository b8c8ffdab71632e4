"""README, CONTRIBUTING and docs can be followed: paths, modules, targets, configs, commands.

Each rule is a function from a page's path and text to a list of its faults. `RULES` lists them,
each with a text that breaks it.
"""

from __future__ import annotations

import functools
import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import source_tree

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]
SHORT_PAGES = {"README.md": 1200, "docs/design.md": 900}  # words
ALL_WORDS = 45_000  # of README.md and docs/ together
DECISIONS = 60
DECISION_WORDS = 120

# Folders below which back-ticked paths are looked up, beside the page's own and the root.
BASES = (".", "ale_jax", "docs", "envs", "ale_jax/sandbox")
# What a run, a user or another project makes: a path that begins so is not in the repository.
MADE_ELSEWHERE = (
    *(
        "runs/",
        "tensorboard/",
        "tokenizer/",
        "checkpoints/",
        "journal/",
        "schedule.jsonl",
        "times.jsonl",
    ),
    "benchmarks/results/experiments/NAME",
    *("config.json", "metrics.jsonl", "evaluations.json", "events.jsonl", "trajectories.jsonl"),
    *("summary.json", "report.html", "traceback.txt", "stacks.txt", "library.log"),
    *("timeline.json", "timeline.earlier.json"),
    *("reward.txt", "reward.json", "episodes.jsonl", "world_digests.json"),
    *("build.sh", "run-tests.sh", "generation_config.json"),
    *("envs/shell/families/NAME", "envs/NAME", "utils.py"),
)
# A quoted word is a path if it begins or ends like one.
FOLDERS = tuple(f"{p.name}/" for p in ROOT.iterdir() if p.is_dir())
ENDINGS = (
    "py",
    "md",
    "json",
    "jsonl",
    "png",
    "sh",
    "toml",
    "ipynb",
    "yaml",
    "txt",
    "html",
    "jinja",
)

# Names that others gave, and ours that the code puts together.
NOT_OURS = re.compile(
    r"pi_\w+|ale_engine_\w+|\w+_16|SLURM_\w+|RAY_ADDRESS|KillWait|RayOperator|[a-z]+\.[a-z]\w*[A-Z]\w*"
).fullmatch
CODE = (".py", ".sh", ".yaml", ".yml", ".toml", ".jinja", ".js", ".sbatch", "")

OUR_COMMAND = re.compile(
    r"(?:python -m ([a-z_][\w.]*)|\b(ale-sandbox|ale-agent|launch/\w+\.(?:py|sh)))"
    r"(?![\w/.-])([^|;]*)"
)
OUR_PACKAGES = ("ale_jax", "benchmarks", "launch")
MAIN_MODULES = {
    "ale-sandbox": "ale_jax.sandbox.cli.main",
    "ale-agent": "ale_jax.agent.assistant.main",
}

# Each command in README's code blocks, and what runs it. Make targets need no entry.
RUN_BY = {
    "sudo apt-get install --yes git make python3-venv": "the machine on which `.ci/run` runs",
    "python -m ale_jax.launch --config=configs/quickstart.py --workdir=runs/first"
    " --config.rl.alpha=0.5": "tests/test_launch.py",
    "python -m ale_jax.model.weights.convert MODEL.gguf DIR --experts=8"
    " --experts-per-token=2": "tests/model/weights/test_convert.py",
    "ale-jax --config=smoke_weights --config.weights=MODEL --workdir=runs/mine": (
        "tests/test_wheel.py"
    ),
    "ale-jax eval --config=quickstart --workdir=runs/quickstart --out=evals/first": (
        "tests/system/test_eval_command.py"
    ),
    "ale-jax compare evals/first evals/other": "tests/evaluation/test_command.py",
}


def links_lead_somewhere(page: str, text: str) -> list[str]:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    here = (ROOT / page).parent
    return [x for x in links if not x.startswith("http") and not (here / x).exists()]


def anchors_are_headings(page: str, text: str) -> list[str]:
    wrong = []
    for path, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", text):
        if path.startswith("http"):
            continue
        target = (ROOT / page).parent / path if path else None
        if target is None or target.exists():
            headings = re.findall(r"^#+ (.*)$", target.read_text() if target else text, re.M)
            if anchor not in map(_slug, headings):
                wrong.append(f"{path}#{anchor}")
    return wrong


def paths_exist(page: str, text: str) -> list[str]:
    """Also of those inside a command."""
    words = [word for quoted in re.findall(r"`([^`\n]+)`", text) for word in quoted.split()]
    paths = [word.split(":")[0] for word in words]
    return [x for x in paths if _is_our_path(x) and not any((ROOT / b / x).exists() for b in BASES)]


def modules_can_be_imported(page: str, text: str) -> list[str]:
    return [m for m in re.findall(r"python -m\s+([a-z_][\w.]*)", text) if not _importable(m)]


def flags_are_known(page: str, text: str) -> list[str]:
    """Of our commands, in blocks and quotes. Behind a lone `--` the flags are those of a run."""
    wrong = []
    for command in re.findall(r"^ {4,}(\S.*)|`([^`\n]+)`", text, re.M):
        for module, program, arguments in OUR_COMMAND.findall(" ".join(command)):
            if module == "pytest" or (module and not _importable(module)):
                continue
            own, _, of_run = arguments.partition(" -- ")
            source = MAIN_MODULES.get(program) or module or ROOT / program
            for flags, where in ((own, source), (of_run, "ale_jax.launch")):
                names = re.findall(r"(?:^| )--([a-z][\w-]*)(?![\w.-])", flags)
                wrong += [f"{program or module}: --{n}" for n in names if n not in _words(where)]
    return wrong


def targets_exist(page: str, text: str) -> list[str]:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    used = re.findall(r"(?:`| {4})make((?: [A-Z_]+=(?:'[^']*'|[^\s`]+))*(?: [a-z-]+)+)", text)
    return [
        name
        for call in used
        for name in re.findall(r" ([a-z-]+)(?![\w=./-])", call)
        if name not in targets
    ]


def configs_and_fields_exist(page: str, text: str) -> list[str]:
    wrong = []
    for line in text.splitlines():
        name, algorithm = "configs/quickstart.py", None
        if match := re.search(r"--config=([\w/]+\.py)(?::([a-z_]+))?", line):
            name, algorithm = match.groups()
        if f"\n# {name}\n" in text:  # the page shows the file
            continue
        if not (ROOT / name).exists():
            wrong.append(name)
            continue
        config = _config(name, algorithm)
        for field in re.findall(r"--config\.([a-z_]\w*(?:\.\w+)*)(?!\w)", line):
            if field != "section.field" and not _has(config, field):
                wrong.append(f"{name}: {field}")
    return wrong


def quoted_fields_exist(page: str, text: str) -> list[str]:
    """Of `section.field` in prose, where the section is one of the quickstart's."""
    config = _config("configs/quickstart.py", "asyppo")
    sections = [key for key, value in config.items() if isinstance(value, dict)]
    fields = re.findall(rf"`((?:{'|'.join(sections)})(?:\.[a-z_]\w*)+)`", text)
    return [field for field in fields if not _has(config, field)]


def names_are_in_the_code(page: str, text: str) -> list[str]:
    """Of quoted names that are no plain words, such as `snake_case`, `CamelCase` and `UPPER`."""
    names = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?`", text)
    ours = [name for name in names if re.search(r"_|[a-z][A-Z]", name) and not NOT_OURS(name)]
    return [name for name in ours if not set(name.split(".")) <= _code_words()]


def short_pages_stay_short(page: str, text: str) -> list[str]:
    words, most = len(text.split()), SHORT_PAGES.get(page)
    return [f"{words} words"] if most and words > most else []


def decisions_are_few_and_short(page: str, text: str) -> list[str]:
    """Each has a date, a reason and a consequence."""
    if page != "docs/decisions.md":
        return []
    entries = re.findall(r"^### (.*(?:\n(?!##).*)*)", text, re.M)
    wrong = [f"{len(entries)} entries"] if len(entries) > DECISIONS else []
    for entry in entries:
        title, _, body = entry.partition("\n")
        if len(entry.split()) > DECISION_WORDS:
            wrong.append(f"{len(entry.split())} words: {title}")
        elif not re.match(r"\d{4}-\d\d-\d\d ", title):
            wrong.append(f"no date: {title}")
        elif "\nReason: " not in body or "\nConsequence: " not in body:
            wrong.append(f"no reason or no consequence: {title}")
    return wrong


def readme_commands_are_run(page: str, text: str) -> list[str]:
    if page != "README.md":
        return []
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    commands = [x for x in lines if re.match(r"(sudo|make|ale-sandbox|\.venv/bin/\S+|python) ", x)]
    known = {command.removeprefix(".venv/bin/") for command in RUN_BY}
    return [
        c
        for c in commands
        if not c.startswith("make ") and c.removeprefix(".venv/bin/") not in known
    ]


DECISION = "### 2026-11-28 A title\nWhat.\n\nReason: a.\n\nConsequence: b.\n\n"
RULES = [
    (links_lead_somewhere, "README.md", "[x](docs/nowhere.md)"),
    (anchors_are_headings, "README.md", "[x](docs/running.md#nowhere)"),
    (paths_exist, "docs/index.md", "`ale_jax/nowhere.py`"),
    (paths_exist, "docs/index.md", "`nowhere.py`"),
    (paths_exist, "CONTRIBUTING.md", "`python -m pytest tests/nowhere.py -k mask`"),
    (modules_can_be_imported, "docs/running.md", "`python -m benchmarks.nothing --quick`"),
    (flags_are_known, "docs/running.md", "    python -m ale_jax.launch --confg=x --debug"),
    (flags_are_known, "docs/pods.md", "`launch/hosts.sh --dry-run HOST -- --nowhere`"),
    (flags_are_known, "docs/sandboxes.md", "    ale-sandbox serve --nothing=1 --state=DIR"),
    (names_are_in_the_code, "docs/design.md", "`ConfigDict`, `no" + "where_at_all`"),
    (names_are_in_the_code, "docs/design.md", "`sandbox.No" + "whereAtAll()`"),
    (targets_exist, "docs/running.md", "`make nothing`"),
    (configs_and_fields_exist, "docs/running.md", "x --config=configs/none.py"),
    (configs_and_fields_exist, "docs/running.md", "--config=configs/smoke.py --config.rl.alhpa=1"),
    (quoted_fields_exist, "docs/policy.md", "`engine.slots`"),
    (short_pages_stay_short, "README.md", "word " * 1201),
    (short_pages_stay_short, "docs/design.md", "word " * 901),
    (decisions_are_few_and_short, "docs/decisions.md", DECISION * 61),
    (decisions_are_few_and_short, "docs/decisions.md", DECISION + "word " * 120),
    (decisions_are_few_and_short, "docs/decisions.md", "### No date\n"),
    (decisions_are_few_and_short, "docs/decisions.md", "### 2026-11-28 No reason\n"),
    (readme_commands_are_run, "README.md", "    python -m benchmarks.sandbox"),
]


@pytest.mark.heavy
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    "rule", dict.fromkeys(rule for rule, _, _ in RULES), ids=lambda r: r.__name__
)
def test_a_page_can_be_followed(rule, page):
    assert rule(page, (ROOT / page).read_text()) == []


@pytest.mark.parametrize(
    ("rule", "page", "broken"), RULES, ids=lambda x: getattr(x, "__name__", "")
)
def test_each_rule_finds_what_it_forbids(rule, page, broken):
    assert len(rule(page, broken)) == 1


def test_all_pages_together_are_short():
    pages = [page for page in PAGES if page != "CONTRIBUTING.md"]
    assert sum(len((ROOT / page).read_text().split()) for page in pages) <= ALL_WORDS


def test_the_readme_and_the_table_count_the_presets():
    presets = importlib.import_module("ale_jax.configs.algorithms").PRESETS
    readme, table = ((ROOT / p).read_text() for p in ("README.md", "docs/algorithms.md"))
    assert re.search(r"(\d+) presets", readme)[1] == str(len(presets))
    section = table.partition("\n## Presets\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z_]+)` \|", section, re.M)) == set(presets)


def test_what_runs_the_readme_commands_exists():
    tests = [by for by in RUN_BY.values() if by.startswith("tests/")]
    assert tests and [by for by in tests if not (ROOT / by).exists()] == []


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _is_our_path(path: str) -> bool:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", path) or path.startswith(MADE_ELSEWHERE):
        return False
    return path.startswith(FOLDERS) or (path.rsplit(".", 1)[-1] in ENDINGS and path[0] != ".")


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def _config(path: str, algorithm: str | None) -> dict[str, Any]:
    module = importlib.import_module("ale_jax." + path.removesuffix(".py").replace("/", "."))
    return module.get_config(*([algorithm] if algorithm else [])).to_dict()


@functools.cache
def _code_words() -> set[str]:
    folders = (ROOT / name for name in source_tree.FOLDERS if name != "docs")
    paths = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    files = (path for path in paths if path.suffix in CODE and path.is_file())
    code = (file.read_text(errors="replace") for file in files)
    return {word for text in code for word in re.findall(r"\w+", text)}


@functools.cache
def _words(source: str | Path) -> set[str]:
    """What is quoted in a program: its file, those of its package, and what they import of ours."""
    if isinstance(source, Path):
        files = [source]
    else:
        found = Path(find_spec(source).origin)
        own_folder = found.name in ("__init__.py", "main.py")
        files = sorted(found.parent.glob("*.py")) if own_folder else [found]
    imported = (
        name
        for file in files
        for name in re.findall(r"^(?:from|import) ([\w.]+)", file.read_text(), re.M)
    )
    specs = [find_spec(name) for name in imported if name.split(".")[0] in OUR_PACKAGES]
    texts = [file.read_text() for file in [*files, *(Path(s.origin) for s in specs if s.origin)]]
    return {word for text in texts for word in re.findall(r"(?:--|[\"'])([a-z][\w-]*)", text)}


def _has(config: dict, field: str) -> bool:
    for part in field.split("."):
        if not isinstance(config, dict) or part not in config:
            return False
        config = config[part]
    return True
