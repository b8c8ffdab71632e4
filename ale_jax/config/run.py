"""A run's configuration: frozen dataclasses that check their own fields."""

from __future__ import annotations

import dataclasses
from typing import Any

from ale_jax.config.agent import AUTO, TEMPLATE, AgentLimits, ExternalAgent
from ale_jax.config.algo import AlgoConfig
from ale_jax.config.attention_credit import AttentionCreditHypers
from ale_jax.config.critics import CriticsHypers
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.config.hardware import HardwareConfig, MeshShape
from ale_jax.config.learn import LearnConfig
from ale_jax.config.model import LoraShape, ModelConfig, TokenizerConfig
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.config.preferences import PreferencesConfig
from ale_jax.config.resampling import ResamplingHypers
from ale_jax.config.rollout import A_DAY, DeadlinesConfig, RolloutConfig
from ale_jax.config.serve import ServeConfig
from ale_jax.config.setting import Settings, section, setting
from ale_jax.config.teacher import TeacherConfig
from ale_jax.config.worlds import Domain, EvalConfig, WarmStartConfig, WorldsConfig
from ale_jax.sandbox.spec import SandboxSpec


@dataclasses.dataclass(frozen=True)
class RlConfig(Settings):
    """Reinforcement learning. A step trains on groups_per_step groups, each of group_size attempts
    at one task.
    """

    steps: int = setting(
        100,
        "reinforcement learning steps of the run; 0: only the warm start.",
        at_least=0,
    )
    groups_per_step: int = setting(16, "groups of a step, and therefore tasks.", at_least=1)
    group_size: int = setting(8, "attempts at a task.", at_least=1)
    alpha: float = setting(
        0.0,
        "the asynchronous ratio: how many steps rollouts may be ahead. A trajectory's first token "
        "is at most alpha versions old, rounded up, when it is trained on; 0: synchronous.",
        at_least=0.0,
        at_most=1e6,
        remedy="0 is synchronous",
    )
    stragglers: str = setting(
        "wait",
        "what happens to a group that is still being played when it is about to be too old: a step "
        "waits for it, and every task that was drawn is trained on, or it is dropped later. "
        "Dropping favours short tasks, and keeps the learner busy.",
        choices=("wait", "drop"),
    )
    fill_queue: bool = setting(
        False,
        "each step waits until rollouts are as far ahead as alpha allows, so that the age of "
        "trajectories is alpha versions, and not just at most alpha.",
    )
    redundant_groups: int = setting(
        0,
        "groups that are played beyond those that a step needs. The first ones that are complete "
        "are trained on; what is too old for the next step then ends at once, and counts as stale. "
        "Slow and broken sandboxes hold no step back, and short tasks are favoured.",
        at_least=0,
    )
    redundant_members: int = setting(
        0,
        "attempts at each task beyond group_size. The first group_size valid ones are trained on, "
        "and the others end at once. Slow and broken sandboxes hold no group back, and short "
        "attempts are favoured: of every task, the slowest are lost.",
        at_least=0,
    )
    max_uses: int = setting(
        1,
        "steps that a group may be used in while it is fresh.",
        at_least=1,
    )
    dynamic_sampling: bool = setting(
        False,
        "groups whose outcomes are all equal do not count towards a step: the next ones take "
        "their place (DAPO). Of the groups begun at one version, only the first two steps' worth "
        "are replaced, so at most 3 + alpha steps' worth are judged; then a step takes what "
        "comes.",
    )
    router_replay: bool = setting(
        False,
        "in training, each token goes to the experts that it went to in sampling.",
    )
    record_steps: bool = setting(
        False,
        "keeps the first state and the episodes of every step in `steps/`, from which `ale-jax "
        "replay` trains again: a checkpoint, and for each episode its texts, 16 bytes for each "
        "sampled token and 4 for each other one.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.redundant_groups:
            return
        given = f"rl.redundant_groups {self.redundant_groups}"
        if self.stragglers == "wait":
            raise ValueError(
                f"{given} has no use with rl.stragglers wait, by which steps wait for all groups: "
                "set rl.stragglers to drop"
            )
        if self.fill_queue or self.max_uses > 1:
            raise ValueError(
                f"{given} cannot be combined with rl.fill_queue or rl.max_uses above 1: set them "
                "to False and 1"
            )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Settings):
    """When the state is saved. The end of the warm start and the last step are always saved."""

    every: int = setting(20, "RL steps between checkpoints.", at_least=1)
    keep: int = setting(2, "number of checkpoints that are kept, the newest ones.", at_least=1)
    grace_seconds: float = setting(
        10.0,
        "how long a run that is told to stop may take to save its newest step.",
        at_least=1.0,
        at_most=A_DAY,
        remedy="it is in seconds",
    )

    def is_due(self, step: int, last: int) -> bool:
        """Tells whether a step is saved. last: the run's last step.

        >>> [step for step in range(1, 8) if CheckpointConfig(every=3).is_due(step, last=7)]
        [3, 6, 7]
        """
        return step % self.every == 0 or step == last


@dataclasses.dataclass(frozen=True)
class RunConfig(Settings):
    """The whole config of a run. It is stored as config.json in the run's folder."""

    name: str = setting("run", "the run's name in reports.")
    seed: int = setting(0, "seed of all random draws.", at_least=0)
    compilation_cache: str = setting(
        "",
        "folder for JAX's persistent compilation cache; empty: no cache.",
    )
    timeline: bool = setting(
        False,
        "writes `timeline.json`, for ui.perfetto.dev: what learner, engines and episodes did when. "
        "The report shows it, and why learner and engines waited.",
    )
    weights: str = setting(
        "",
        "a Hugging Face folder, a .gguf file or the name of a model on the hub, as in org/name or "
        "org/name@revision, with the initial weights; their shape becomes `model`, of which fields "
        "with other values than the defaults must agree; empty: random initial weights.",
    )
    architecture: str = setting(
        "",
        "config.json of `weights` whose layers `model` cannot describe, as a text; it is filled in "
        "from them. `model` then has the numbers of the first layer.",
    )
    hardware: HardwareConfig = section(HardwareConfig)
    mesh: MeshShape = section(MeshShape)
    model: ModelConfig = section(ModelConfig)
    tokenizer: TokenizerConfig = section(TokenizerConfig)
    worlds: WorldsConfig = section(WorldsConfig)
    sandbox: SandboxSpec = section(SandboxSpec)
    agent: AgentLimits = section(AgentLimits)
    external_agent: ExternalAgent = section(ExternalAgent)
    rollout: RolloutConfig = section(RolloutConfig)
    engine: EngineShape = section(EngineShape)
    learn: LearnConfig = section(LearnConfig)
    lora: LoraShape = section(LoraShape)
    warm_start: WarmStartConfig = section(WarmStartConfig)
    warm_start_optimizer: OptimizerHypers = section(OptimizerHypers, learning_rate=1e-5)
    preferences: PreferencesConfig = section(PreferencesConfig)
    preferences_optimizer: OptimizerHypers = section(OptimizerHypers)
    rl: RlConfig = section(RlConfig)
    rl_optimizer: OptimizerHypers = section(OptimizerHypers)
    algo: AlgoConfig = section(AlgoConfig)
    teacher: TeacherConfig = section(TeacherConfig)
    critics: CriticsHypers = section(CriticsHypers)
    attention_credit: AttentionCreditHypers = section(AttentionCreditHypers)
    resampling: ResamplingHypers = section(ResamplingHypers)
    train_sampling: Sampling = section(Sampling)
    eval_sampling: Sampling = section(Sampling)
    eval: EvalConfig = section(EvalConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    deadlines: DeadlinesConfig = section(DeadlinesConfig)
    serve: ServeConfig = section(ServeConfig)

    @property
    def demonstrated(self) -> tuple[Domain, ...]:
        """The domains whose oracles the warm start learns from."""
        if self.warm_start.domains or self.warm_start.data:
            return self.warm_start.domains
        return tuple(dataclasses.replace(each, ratio=1) for each in self.worlds.train)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domains of all tasks of the run."""
        return (*self.worlds.train, *self.worlds.held_out, *self.demonstrated)

    @property
    def tools_in_template(self) -> bool:
        """Whether the tools of our own loop are told by the chat template."""
        return self.agent.tools == TEMPLATE or (self.agent.tools == AUTO and bool(self.weights))

    @property
    def policy_updates(self) -> int:
        """The updates of the policy in the whole run, of which its schedule's shares are."""
        return self.rl.steps * self.learn.epochs * self.learn.minibatches

    @property
    def critic_updates(self) -> int:
        """The updates of each critic in the whole run."""
        return self.rl.steps * self.critics.epochs * self.critics.minibatches

    def to_json(self) -> dict[str, Any]:
        """Returns the config as config.json holds it."""
        return dataclasses.asdict(self)
