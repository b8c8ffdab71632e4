"""What does the paper's supervised stage reach alone? Expect: most of the demonstrated tasks.
python -m ale_jax.launch --config=configs/experiments/sft.py --workdir=runs/sft

Eq 1 on two domains, with seven parts of shell tasks to three of arithmetic. 30 % of the shell
demonstrations contain errors: chunks with errors and repeated chunks stay in the context, but are
excluded from the loss. `script` is left out, because its oracle needs an error to find the repair.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.configs.experiments import shell

SHELL = ("trail", "count", "log", "lookup", "sort")
ARITHMETIC = ("countdown3",)


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = shell.get_config(algorithm)
    c.name = "sft"
    c.worlds.train = (
        {"world": "shell", "families": SHELL, "ratio": len(SHELL)},
        {"world": "countdown", "families": ARITHMETIC, "ratio": len(ARITHMETIC)},
    )
    c.warm_start.domains = (
        {"world": "shell", "families": SHELL, "ratio": 7},
        {"world": "countdown", "families": ARITHMETIC, "ratio": 3},
    )
    c.warm_start.update(noisy_share=0.3, mask_errors=True, mask_repeats=True)
    c.warm_start.update(max_steps=400, target_success=0.9)
    c.rl.steps = 0
    return c
