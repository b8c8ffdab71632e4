"""Script: its data file has been renamed, and the script must be repaired.

The goal runs the script on new data, so a script that merely prints the expected output fails.
"""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, Probe, ShellTask, lines, pick

WORDINGS = (
    "{script} fails: its data has another name now. Repair it.",
    "Make {script} run. The data it reads was renamed.",
)
EXTENSIONS = ("csv", "dat", "log", "md", "txt", "xml")


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    directory, script = names.word(), names.path("sh")
    extension = pick(rng, EXTENSIONS)
    wrong, right = names.words(2)
    data = f"{directory}/{right}.{extension}"
    files = {names.path(extension): lines(names.word()) for _ in range(2)}
    files |= {script: lines(f"cat {directory}/{wrong}.{extension}"), data: lines(names.word())}
    unseen = names.word()
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(script=script),
        files=files,
        goal=Goal(
            # The script's own content does not matter; it is judged by its output.
            files={path: content for path, content in files.items() if path != script},
            probe=Probe({data: lines(unseen)}, f"sh {script}", unseen),
        ),
        oracle=(
            bash(f"sh {script}"),
            bash(f"ls {directory}"),
            bash(f"sed -i 's/{wrong}/{right}/' {script}"),
            bash(f"sh {script}"),
            finish(),
        ),
    )
