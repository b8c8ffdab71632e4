"""Draws the table of the laboratory: which preset wins in which regime.

    python -m benchmarks.laboratory.picture [--out=docs/images/laboratory.png]

One panel for each policy, one row for each regime, one column for each preset; colours and numbers
are points of success, averaged over the training, above or below GRPO. Needs matplotlib
(pip install '.[notebooks]').
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from ale_jax.files import read_json
from benchmarks.laboratory.golden import FILE
from notebooks import style

OUT = Path("docs/images/laboratory.png")
FAR = 30.0  # points, at which a colour is full
SHOWN = 2.0  # errors, below which a difference is not printed; nor is one that rounds to 0


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laboratory.picture", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=OUT)
    out, found = parser.parse_args(arguments).out, read_json(FILE)
    if not found["tables"]:
        parser.error(f"{FILE.name} has no table yet: python -m benchmarks.laboratory --table")
    matplotlib.use("Agg")
    style.use()
    # Without the version of matplotlib, so that equal results give equal files.
    draw(found).savefig(out, metadata={"Software": None})
    print(out)
    return 0


def draw(found: Mapping[str, Any]) -> Figure:
    """`found`: what `golden.add_part` wrote."""
    tables = found["tables"]
    rows = list(map(len, tables.values()))
    figure, panels = plt.subplots(
        *(len(tables), 1),
        figsize=(15, 0.3 * sum(rows) + 1.3 * len(rows)),
        squeeze=False,
        layout="constrained",
        height_ratios=rows,
    )
    for panel, (policy, table) in zip(panels[:, 0], tables.items(), strict=True):
        presets = [name for name in next(iter(table.values())) if name != found["reference"]]
        cells = [[row[preset] for preset in presets] for row in table.values()]
        points = np.array([[cell["area_difference"] for cell in row] for row in cells])
        panel.imshow(points, cmap=style.CREDIT, vmin=-FAR, vmax=FAR, aspect="auto")
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                if abs(cell["area_difference"]) >= max(SHOWN * cell["area_error"], 0.5):
                    strong = abs(cell["area_difference"]) > 0.6 * FAR
                    colour = "white" if strong else "black"
                    text = f"{cell['area_difference']:+.0f}"
                    panel.text(x, y, text, ha="center", va="center", color=colour, fontsize=8)
        own = [row[found["reference"]]["area"] for row in table.values()]
        names = [f"{name} ({area:.0f} %)" for name, area in zip(table, own, strict=True)]
        panel.set_yticks(range(len(names)), names)
        panel.set_xticks(range(len(presets)), presets, rotation=40, ha="right")
        panel.set_title(f"{policy}: points above {found['reference']} (its success in brackets)")
        panel.grid(False)
    return figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
