"""The tasks of a run: those that are trained on, demonstrated, and evaluated."""

from __future__ import annotations

import dataclasses

from ale_jax.config.recorded import RecordedData
from ale_jax.config.setting import Options, Settings, Weights, setting


@dataclasses.dataclass(frozen=True)
class Domain(Settings):
    """Families of one world, and how they are played.

    Only what differs from the defaults has to be named: {"world": "shell", "families": ("sort",)}.
    """

    OWNER = "domain "

    world: str = setting(
        "", "its short name, such as shell, or its class as module:Class (docs/worlds.md)."
    )
    families: tuple[str, ...] = setting((), "some of the world's; empty: all that it lists.")
    options: Options = setting(
        (),
        "what the world is made with, such as {'folder': 'tasks'}; each world says what it takes. "
        "Worlds that come with ale-jax read relative paths from `worlds.folder`.",
    )
    ratio: int = setting(
        1,
        "its number of tasks in every sum(ratios) of the list that it stands in.",
        at_least=1,
        remedy="or leave it out",
    )
    prefix: str = setting(
        "", "put before the families' names, where those of two worlds are the same."
    )
    turns: int = setting(
        0,
        "as agent.turns, for these tasks; 0: what the world says, or else that.",
        at_least=0,
        remedy="0 is off",
    )
    reply_tokens: int = setting(
        0,
        "as rollout.max_reply_tokens, for these tasks; 0: what the world says, or else that.",
        at_least=0,
        remedy="0 is off",
    )
    context: int = setting(
        0,
        "tokens of an episode, prompts and replies together, for these tasks; 0: what the world "
        "says, or else engine.max_sequence_length.",
        at_least=0,
        remedy="0 is off",
    )
    solved_at: float = setting(
        0.0,
        "the reward from which episodes count as solved; 0.0: what the world says, which is 1.0 "
        "unless it pays otherwise. Only solved episodes become experts.",
        at_least=0.0,
    )

    pass_rates: str = setting(
        "",
        "folder of an evaluation of its training items (`ale-jax eval --split=train --samples=8`), "
        "by whose pass rates they are chosen; empty: all are trained on.",
    )
    pass_at_least: float = setting(
        0.0, "the lowest pass rate of a training item.", at_least=0.0, at_most=1.0
    )
    pass_at_most: float = setting(
        1.0, "the highest pass rate of a training item.", at_least=0.0, at_most=1.0
    )
    weights: Weights = setting(
        (),
        "by which rewards that the world gives by name are multiplied before they are added, such "
        "as {'format': 0.2}; of those that are not named here, 1.0.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.world:
            raise ValueError("a domain names no world: give one, as in {'world': 'shell'}")
        if len(set(self.families)) < len(self.families):
            raise ValueError(f"families {self.families} names one twice: each comes up equally")
        low, high = self.pass_at_least, self.pass_at_most
        if (low, high) != (0.0, 1.0) and not self.pass_rates:
            raise ValueError(
                f"pass_at_least {low} and pass_at_most {high} need pass_rates, the folder of an "
                "evaluation"
            )
        if low > high:
            raise ValueError(f"pass_at_least {low} is above pass_at_most {high}")

    @property
    def choice(self) -> tuple[str, float, float]:
        """By what its training items are chosen."""
        return self.pass_rates, self.pass_at_least, self.pass_at_most


@dataclasses.dataclass(frozen=True)
class WorldsConfig(Settings):
    """The tasks. Those of a domain's families come up equally often."""

    train: tuple[Domain, ...] = setting((), "what is trained on, as `Domain`; at least one.")
    held_out: tuple[Domain, ...] = setting((), "what is only evaluated.")
    folder: str = setting(
        "",
        "where the modules of worlds are looked for first, and the files that options name; empty: "
        "where the config's file is.",
    )
    tasks_per_family: int = setting(
        0,
        "distinct training tasks of a family, which are repeated in the same order; 0: a task "
        "comes up once, or in worlds of finite items once in each epoch.",
        at_least=0,
    )


@dataclasses.dataclass(frozen=True)
class WarmStartConfig(Settings):
    """Supervised training on oracle transcripts, and on recorded conversations (`data`). It ends
    when the policy's estimated success on unseen tasks reaches target_success, after so many epochs
    of the recorded conversations, when the loss on those that are held out no longer falls, or
    after max_steps updates, whichever is first. Only transcripts of oracles give an estimate of
    success.
    """

    transcripts_per_family: int = setting(256, "demonstrations of each family.", at_least=1)
    rows_per_step: int = setting(
        16, "full rows per update, in microbatches of learn.microbatch_rows.", at_least=1
    )
    max_steps: int = setting(0, "maximum number of updates; 0: no warm start.", at_least=0)
    probe_every: int = setting(
        2,
        "updates between two estimates of the policy's success.",
        at_least=1,
    )
    probe_tasks: int = setting(48, "unseen tasks in each estimate.", at_least=1)
    target_success: float = setting(
        1.0,
        "estimated success rate at which the warm start ends.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a rate",
    )
    domains: tuple[Domain, ...] = setting(
        (),
        "what is demonstrated; empty: what is trained on, all families in equal parts, or nothing "
        "if there is `data`.",
    )
    data: tuple[RecordedData, ...] = setting(
        (), "recorded conversations to learn from, as `RecordedData`, beside `domains`."
    )
    epochs: int = setting(
        0,
        "passes over each of `data` after which the warm start ends; 0: they do not end it.",
        at_least=0,
    )
    held_out_share: float = setting(
        0.0,
        "share of `data`, chosen by how conversations begin, that is not trained on; its loss is "
        "measured every probe_every updates.",
        at_least=0.0,
        below=1.0,
        remedy="it is a share",
    )
    patience: int = setting(
        0,
        "measurements in a row without a new lowest loss on what is held out, after which the warm "
        "start ends; 0: they do not end it.",
        at_least=0,
    )
    noisy_share: float = setting(
        0.0,
        "share of the demonstrations of shell tasks that contain a failing and a repeated call.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share",
    )
    mask_errors: bool = setting(
        False,
        "exclude chunks whose tool call failed from the loss (data/selection.py), in recorded "
        "conversations those whose results say so.",
    )
    mask_repeats: bool = setting(False, "exclude chunks that repeat an earlier one from the loss.")


@dataclasses.dataclass(frozen=True)
class EvalConfig(Settings):
    """Evaluation after the warm start and at the end of the run, on tasks of the evaluation split
    that are divided evenly among the families.
    """

    tasks: int = setting(100, "tasks of the training families.", at_least=1)
    held_out_tasks: int = setting(0, "tasks of the held-out families; 0: none.", at_least=0)
    every: int = setting(
        0,
        "RL steps between further evaluations during training; 0: none.",
        at_least=0,
    )
