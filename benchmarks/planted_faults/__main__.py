"""How many planted faults does the test suite catch?

    python -m benchmarks.planted_faults [--quick] [--count=60] [--seed=0] [--processes=1]
        [--unmutated=REPORT] [--out=FILE]

Each fault is one small change of the source (mutations.py), planted alone in a temporary copy of
the tracked files. There the tests of `make test` that mirror its package or import its module run
until one fails, for at most four minutes of CPU time. Every package has faults in proportion to its
lines, and at least one where there are enough for all. A fault is caught if the test that failed
passes without it, within the same limit. If it does not pass, or pytest broke off without naming a
test, the result is void (exit status 2). A run that hangs counts as caught if the unmutated tests
take at most half of the limit. In slower packages a run that reaches the limit counts as not
caught. The share is of all faults, whatever their outcome.

The tests run once without a fault, since those that are quick are tried first. This takes as long
as the whole suite: --unmutated keeps the report of it, and takes it if it exists. --processes: how
many faults are tried at once, each in a copy of its own. Without --out nothing is written. --quick:
three faults, in packages with quick tests.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.planted_faults.mutations import Mutation, changes_bytecode, mutations
from benchmarks.planted_faults.trial import (
    QUICK,
    copy_of_tree,
    nearest_tests,
    package_of,
    run_tests,
    seconds_of,
    try_fault,
)

ROOT = Path(__file__).parents[2]
TOPS = ("ale_jax", "envs")
QUICK_COUNT, QUICK_PACKAGES = 3, ("ale_jax/agent", "ale_jax/data", "ale_jax/monitor")
CAUGHT = ("caught", "hung")

Fault = tuple[str, Mutation]


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--unmutated", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    with ExitStack() as stack:
        copies = [stack.enter_context(copy_of_tree(root)) for _ in range(args.processes)]
        modules = modules_of(copies[0])
        if args.quick:
            modules = {p: modules[p] for p in QUICK_PACKAGES if p in modules}
        faults = draw(copies[0], modules, QUICK_COUNT if args.quick else args.count, args.seed)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        report = (args.unmutated or folder / "unmutated.xml").absolute()
        if not report.exists():
            run_unmutated(copies[0], faults, report)
        results = try_all(copies, faults, seconds_of(report))
    found = summary(results, args.seed)
    caught, total = found["caught"], found["faults"]
    for package, counts in found["by_package"].items():
        print(f"{package:28}{counts['caught']:>4} of {counts['faults']}")
    print(f"caught {caught} of {total}: {100 * found['share']:.0f} %")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 2 if any(each["outcome"] == "void" for each in results) else 0


def modules_of(root: Path) -> dict[str, list[str]]:
    """The non-empty modules of each package, by the package's folder, both sorted."""
    found: dict[str, list[str]] = {}
    for path in sorted(p for top in TOPS for p in (root / top).rglob("*.py")):
        if path.stat().st_size:
            module = str(path.relative_to(root))
            found.setdefault(package_of(module), []).append(module)
    return found


def draw(root: Path, modules: dict[str, list[str]], count: int, seed: int) -> list[Fault]:
    """Draws the faults; fewer than `count` if a package has fewer places than its share."""
    lines = {p: sum(map(len_of, (root / m for m in each))) for p, each in modules.items()}
    faults = []
    for package, share in shares(lines, count, seed).items():
        faults += _draw_from(root, modules[package], share, random.Random(f"{seed} {package}"))
    return faults


def len_of(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def shares(lines: dict[str, int], count: int, seed: int) -> dict[str, int]:
    """How many faults each package has: Sainte-Laguë's method, after one for each. Where there
    are too few for that, a draw weighted by lines says which packages have one."""
    if count < len(lines):
        chance = random.Random(seed)
        keys = {package: chance.random() ** (1 / max(n, 1)) for package, n in lines.items()}
        return dict.fromkeys(sorted(sorted(keys, key=keys.get)[len(keys) - count :]), 1)
    given = dict.fromkeys(lines, 1)
    for _ in range(count - len(lines)):
        given[max(lines, key=lambda package: lines[package] / (2 * given[package] + 1))] += 1
    return given


def _draw_from(root: Path, modules: list[str], count: int, chance: random.Random) -> list[Fault]:
    sources = {module: (root / module).read_bytes() for module in modules}
    places = [(module, each) for module in modules for each in mutations(sources[module])]
    chance.shuffle(places)
    drawn: list[Fault] = []
    for module, mutation in places:
        if len(drawn) == count:
            break
        if changes_bytecode(sources[module], mutation.apply(sources[module])):
            drawn.append((module, mutation))
    return sorted(drawn)


def run_unmutated(root: Path, faults: list[Fault], report: Path) -> None:
    """Writes a JUnit report of all tests that one of the faults may run."""
    tests = sorted({test for module, _ in faults for test in nearest_tests(root, module, {})})
    options = [f"--junitxml={report}", "-o", "junit_family=xunit1", *QUICK]
    ran = run_tests(root, [*options, *tests], limit_s=None)
    failed = f", {ran.failed} failed" if ran.status else ""
    print(f"unmutated tests: {ran.seconds:.1f} seconds{failed}", flush=True)


def try_all(
    copies: list[Path], faults: list[Fault], seconds: Mapping[str, float]
) -> list[dict[str, Any]]:
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def try_one(fault: Fault) -> dict[str, Any]:
        module, mutation = fault
        copy = free.get()
        try:
            outcome, ran = try_fault(copy, module, mutation, seconds)
        finally:
            free.put(copy)
        change = f"{_short(mutation.before)} -> {_short(mutation.after)}"
        print(f"{outcome:18}{ran.seconds:8.1f}  {module}:{mutation.line}: {change}", flush=True)
        return {
            "file": module,
            "line": mutation.line,
            "kind": mutation.kind,
            "before": mutation.before,
            "after": mutation.after,
            "outcome": outcome,
            "seconds": ran.seconds,
            "failed": ran.failed,
        }

    print(f"\n{'outcome':18}{'seconds':>8}  fault")
    with ThreadPoolExecutor(len(copies)) as pool:
        results = list(pool.map(try_one, faults))
    print()
    return results


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."


def summary(results: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    total = Counter(package_of(each["file"]) for each in results)
    caught = Counter(package_of(e["file"]) for e in results if e["outcome"] in CAUGHT)
    return {
        "faults": len(results),
        "caught": caught.total(),
        "share": round(caught.total() / max(len(results), 1), 3),
        "seed": seed,
        "by_package": {p: {"faults": n, "caught": caught[p]} for p, n in sorted(total.items())},
        "planted": results,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
