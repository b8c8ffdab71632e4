"""Is a model of any family what its authors meant, and what does it cost before it acts?

    python -m benchmarks.families [--quick] [--only=PART,...]

parity: tiny random models of each family against transformers': logits and gradient, also of packed
rows, tokens of the engine while weights change or conversations give way, and export.
mutations: a thousand damaged or odd configurations: refused, or equal to transformers.
compile: CPU seconds until the optimizer's update of 30 layers is compiled, divided by those of
`optax.adamw` alone, of the same weights.
templates: conversations whose ids are those of transformers, for the tokenizers that `make
tokenizers` has fetched.
line: families whose tiny models plan, train, export and serve, with no flag but --config.weights.
serve: CPU seconds until `serve` has answered its first call, divided by those with a run's sizes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.credit_step import about
from benchmarks.families import (
    first_answer,
    mutations,
    one_line,
    parity,
    templates,
    update_compile,
)

# Name -> the part that prints a table and returns its figures. The argument is `--quick`.
PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "parity": parity.measure,
    "mutations": mutations.measure,
    "compile": update_compile.measure,
    "templates": templates.measure,
    "line": one_line.measure,
    "serve": first_answer.measure,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only={options.only}: there is no {min(unknown)} among {', '.join(PARTS)}")
    figures: dict[str, Any] = {}
    for name in chosen:
        figures |= PARTS[name](options.quick)
    print(json.dumps(about(f"python -m benchmarks.families --only={options.only}") | figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
