"""How many planted faults does the test suite catch?

    python -m benchmarks.planted_faults [--quick] [--count=60] [--seed=0] [--out=FILE]

Each fault is one small change of the source (mutations.py), planted alone in a temporary copy of
the tracked files, where the tests that mirror its package then run for at most two minutes. Every
package has faults in proportion to its lines, and at least one where there are enough for all.
A run that hangs counts as caught if the unmutated tests take at most half of the limit. In slower
packages a run that reaches the limit does not count. Without --out nothing is written. --quick:
three faults, in packages with quick tests. Exit status 2: the unmutated tests fail, and the result
is void.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.planted_faults.mutations import Mutation, changes_bytecode, mutations
from benchmarks.planted_faults.trial import (
    UNMUTATED_LIMIT_S,
    Ran,
    copy_of_tree,
    mirroring_tests,
    package_of,
    run_tests,
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
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    with copy_of_tree(root) as copy:
        modules = modules_of(copy)
        if args.quick:
            modules = {p: modules[p] for p in QUICK_PACKAGES if p in modules}
        faults = draw(copy, modules, QUICK_COUNT if args.quick else args.count, args.seed)
        unmutated = run_unmutated(copy, sorted({package_of(module) for module, _ in faults}))
        if unmutated is None:
            return 2
        results = try_all(copy, faults, unmutated)
    found = summary(results, args.seed)
    caught, total = found["caught"], found["faults"]
    for package, counts in found["by_package"].items():
        print(f"{package:28}{counts['caught']:>4} of {counts['faults']}")
    print(f"caught {caught} of {total}: {100 * found['share']:.0f} %")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 0


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


def run_unmutated(root: Path, packages: list[str]) -> dict[str, Ran] | None:
    """The run of each package's tests; None if one fails, which makes the result void."""
    print(f"{'unmutated tests of':28}{'seconds':>8}")
    found, by_tests = {}, {}
    for package in packages:
        tests = tuple(mirroring_tests(root, package))
        if tests not in by_tests:
            by_tests[tests] = run_tests(root, list(tests), UNMUTATED_LIMIT_S)
        ran = found[package] = by_tests[tests]
        print(f"{package:28}{ran.seconds:8.1f}", flush=True)
        if ran.status != 0:
            why = ran.failed or ("out of time" if ran.status is None else f"status {ran.status}")
            print(f"void: the unmutated tests of {package} do not pass: {why}", file=sys.stderr)
            return None
    return found


def try_all(root: Path, faults: list[Fault], unmutated: dict[str, Ran]) -> list[dict[str, Any]]:
    results = []
    print(f"\n{'outcome':18}{'seconds':>8}  fault")
    for module, mutation in faults:
        outcome, ran = try_fault(root, module, mutation, unmutated[package_of(module)])
        change = f"{_short(mutation.before)} -> {_short(mutation.after)}"
        print(f"{outcome:18}{ran.seconds:8.1f}  {module}:{mutation.line}: {change}", flush=True)
        results.append(
            {
                "file": module,
                "line": mutation.line,
                "kind": mutation.kind,
                "before": mutation.before,
                "after": mutation.after,
                "outcome": outcome,
                "seconds": ran.seconds,
                "failed": ran.failed,
            }
        )
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
