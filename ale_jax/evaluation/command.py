"""ale-jax compare A B [C ...]"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ale_jax.evaluation import tables
from ale_jax.evaluation.compare import compare
from ale_jax.evaluation.episodes import Result, read_result
from ale_jax.evaluation.seeds import Group, compare_seeds
from ale_jax.evaluation.statistics import breakdown, summarize

GRAMMAR = "write folders of evaluations, or NAME=FOLDER,FOLDER with one of each seed's run"


def run_compare(operands: Sequence[str], as_json: bool) -> None:
    """Prints how the results differ from the first, as tables, or as JSON.

    ValueError if there are none, they cannot be read, or they have nothing in common.
    """
    if len(operands) < 2:
        raise ValueError(f"compare needs at least two results: {GRAMMAR}")
    groups = [read_operand(each) for each in operands]
    sizes = [len(group.runs) for group in groups]
    if min(sizes) == 1 < max(sizes):
        name = groups[sizes.index(1)].name
        raise ValueError(f"{name} is one result, and others are several runs: {GRAMMAR}")
    results = [result for group in groups for result in group.runs]
    found = compare(results) if max(sizes) == 1 else compare_seeds(groups)
    if as_json:
        content = {
            "results": list(map(_described, results)),
            "comparisons": list(map(dataclasses.asdict, found)),
        }
        print(json.dumps(content, allow_nan=False))
    else:
        tables.show(results, found)


def read_operand(operand: str) -> Group:
    """Reads FOLDER, or NAME=FOLDER[,FOLDER ...], whose results are called by their folders unless
    there is one."""
    name, equals, paths = operand.partition("=")
    if not equals or Path(operand).exists():
        return Group(operand, (read_result(Path(operand)),))
    folders = paths.split(",")
    if not name or not all(folders):
        raise ValueError(f"{operand!r} is not understood: {GRAMMAR}")
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise ValueError(f"{operand!r} names a folder twice: each run is of a seed of its own")
    if len(folders) == 1:
        return Group(name, (read_result(Path(folders[0]), name),))
    return Group(name, tuple(read_result(Path(folder)) for folder in folders))


def _described(result: Result) -> dict[str, Any]:
    groups = {
        column: {value: dataclasses.asdict(summary) for value, summary in values.items()}
        for column, values in breakdown(result.episodes).items()
    }
    whole = dataclasses.asdict(summarize(result.episodes))
    return {"name": result.name, "torn": result.torn, "all": whole, "by": groups}
