"""Who plays the episodes, and how long they may be."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting

AUTO, TEMPLATE, TEXT = TOOLS = ("auto", "template", "text")
BRANCHES = ("all", "longest", "leaf")  # as in `gateway.token_tree.BranchChoice`


@dataclasses.dataclass(frozen=True)
class AgentLimits(Settings):
    """How long an episode may be, and which episodes are sampled again."""

    turns: int = setting(
        10,
        "replies that the environment answers; after them the current state is graded. Turns of a "
        "prefix count, so that the same state has the same number of turns left, however it was "
        "reached.",
        at_least=1,
    )
    tools: str = setting(
        "auto",
        "how our own loop offers its tools (bash, finish): template: by the model's chat template, "
        "and calls are read in its format; text: by a sentence, and calls are written as Qwen3 "
        "does; auto: template for models that are given (`weights`, or `--policy` of `eval`), text "
        "for those that are not.",
        choices=TOOLS,
    )
    malformed_limit: int = setting(
        0,
        "in training, this many replies in a row without a valid call end the episode without a "
        "reward, and it is sampled again; 0: no limit.",
        at_least=0,
        remedy="0 is off",
    )
    replay_share: float = setting(
        0.0,
        "share of the training episodes that are replayed with their own replies. If the "
        "environment then answers or rewards differently, the episode is sampled again.",
        at_least=0.0,
        at_most=1.0,
        remedy="0 is off, 1 replays all",
    )
    record_episodes: bool = setting(
        False,
        "the episodes of each step are written with their conversations into episodes/train_STEP "
        "of the run's folder, of which `ale-jax export --episodes` makes other formats.",
    )


@dataclasses.dataclass(frozen=True)
class ExternalAgent(Settings):
    """The program that plays the episodes, in the sandbox and its image.

    In the words of the command and in values, {instruction}, {url} and {token} stand for the
    task, the API's base URL and its key. OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and
    ANTHROPIC_API_KEY are set. The last line that it prints is its answer, in tasks that ask for
    one.
    """

    command: tuple[str, ...] = setting((), "its command line; empty: the project's own loop plays.")
    env: tuple[tuple[str, str], ...] = setting(
        (),
        "further environment variables, each (name, value).",
    )
    port: int = setting(
        8900,
        "of localhost in the sandbox, at which the agent reaches the gateway.",
        at_least=1024,
        at_most=65535,
    )
    seconds: float = setting(
        300.0,
        "time until it is killed. What it has done until then is judged.",
        above=0,
    )
    branches: str = setting(
        "all",
        "what is trained on of an episode's conversations: all; longest: the one with the most "
        "tokens; leaf: that of the last answer.",
        choices=BRANCHES,
    )
    demonstrates: bool = setting(
        False,
        "it also plays the demonstrations of the warm start, which the oracle answers, so that "
        "they hold what the policy will read of it; else our own loop does.",
    )
