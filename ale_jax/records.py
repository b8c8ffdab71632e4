"""The data that flows through the system (tasks, turns, trajectories, batches) as frozen records.

Shape suffixes of the whole repository: `logp_BT` is an array of rows and tokens. A digit is an axis
of that size. A letter's second meaning follows the packages that use it so.
    A  assignments of a token to an expert: T x K
    B  rows of packed tokens; in the sampler, new tokens of conversations
    C  chunks of a row or trajectory. model: capacity, rows that each expert or device takes at once
    D  width of the residual stream
    E  experts
    F  width of a feed-forward layer, or of an expert
    G  key and value heads. algo, data, learn: groups of trajectories that play one task
    H  width of a head. algo, data: last observations by which states are compared, 1, 2, ...
    I  sampling masks of an episode or of a row
    J  segments: as many as a row can have. model: keys that a block of queries can reach back to
    K  experts per token. algo: keys (groups, tags or batches) within which units are compared
    L  layers that have experts
    M  keys that are attended to: of a row, or of a conversation's cache. algo, learn: microbatches
    N  query heads. algo, data: trajectories of a step
    O  numbers of a latent, of which keys and values, or queries, are linear maps
    P  pages of the cache. data, system: prefix turns of a trajectory
    Q  batches of prefill chunks in a dispatch. learn: critics
    R  prefill chunks in such a batch. data, learn: tokens of a row that a loss reads
    S  slots of the sampler, one per conversation
    T  tokens: of a row, trajectory, conversation or chunk; of all rows where there is no B
    U  units that are compared or counted. model: experts, or devices of experts, sent to at once
    V  vocabulary
    W  pages of a conversation
    X  query heads of all layers that are analysed
    Y  places for rows that are computed or sent at once: U x C
    Z  blocks, or shards, into which an axis is cut
    b  tokens of a page
    c  bits of a segment's code
    h  width of a value in a gated delta layer
    i  tokens that a recurrent layer's convolution sees
    k  most probable tokens that are shown. algo: tokens before an anchor, which may introduce it
    m  keys of one block
    n  decode steps
    p  tokens in all pages of the cache: P x b
    r  query heads that share a key and value head: N / G
    t  tokens of one block, or of one device's share of a row
    v  entries of one block of the vocabulary
    w  words of 32 bits, one bit for each token of the vocabulary
    x  queries that share a key and value head: t x r or T x r
"""

from __future__ import annotations

import dataclasses
import enum
import math
import zlib

import numpy as np
from numpy.typing import NDArray

from ale_jax.config.engine import PLAIN, Sampling
from ale_jax.status import Status


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, which is rebuilt bit for bit from the names of its family and item alone. A family
    that makes its tasks from seeds calls them by their seeds: `Task("sort", 7, "train")`."""

    family: str
    item: int | str
    split: str  # "train" | "eval"

    @property
    def number(self) -> int:
        """The item as a number, not negative, of which keys of random draws are made."""
        seed = self.item if isinstance(self.item, int) else -1
        return seed if seed >= 0 else zlib.crc32(str(self.item).encode())


TRAIN = "train"

# Instead of the number of a sampling mask: any token was allowed; no other one was.
FREE, FORCED = -1, -2
# Distinct sampling masks of an episode, and of a packed row. Of 151,936 tokens one takes 19 kB, and
# those of a row take 4.9 MB.
MAX_MASKS = 256
MAX_CUT_MASKS = 1 << 15  # of an episode if `Sampling.cuts`; as many as their numbers, int16, can be
MASK_WORD = 32  # tokens of the vocabulary whose permissions are the bits of one number


@dataclasses.dataclass(frozen=True)
class EpisodeKey:
    """The position of an episode in its run. All its randomness is derived from this key.

    `EpisodeKey("train", group=12, member=3, task=task, num_prefix_turns=2)` is the fourth attempt
    of the thirteenth group of training at `task`, after the expert's first two turns.

    phase: "train", "eval/warm_start", ...; group: index of the task within that phase;
    member: index of the attempt within the group. A retry keeps its key.
    num_prefix_turns: turns taken from an expert's trajectory before the policy plays; 0 in
    evaluations.
    """

    phase: str
    group: int
    member: int
    task: Task
    num_prefix_turns: int = 0

    def __post_init__(self) -> None:
        assert self.num_prefix_turns == 0 or not self.phase.startswith("eval"), self

    @property
    def is_trained_on(self) -> bool:
        """Whether it is an episode of training. Only these may be rejected for what they did;
        evaluations judge them all."""
        return self.phase == TRAIN


class ReplyKind(enum.StrEnum):
    """What became of a reply of the policy."""

    ACTION = "action"  # it was carried out, or may have been
    CUT = "cut"  # the full context cut it before it was an action, and nothing follows it
    REPLACED = "replaced"  # the agent asked again, or went on with other words in its place
    SIDE = "side"  # to a call without tools, such as for a title, and read by nobody afterwards


@dataclasses.dataclass(frozen=True)
class Turn:
    """One policy call: the tokens appended before it, and the chunk of tokens that it wrote.

    prompt_ids: ids appended to the context since the last turn (instruction or observation).
    action_ids: ids that the policy sampled, stop token included. The next three have one entry per
    such id.
    logp_mu: natural log, under the distribution that was sampled from: the softmax of the logits
    over the temperature, among the tokens that were allowed and that top-k, top-p and min-p left.
    logp_old: the learner's for the same distribution; the sampler's, until it is recomputed.
    version: the version of the weights that generated each token.
    reward: this chunk's own reward. Where only the outcome is rewarded, the last chunk has it.
    mask_id: of each sampled id the number of the mask that restricted its draw, a row of the
    trajectory's mask_Iw, or FREE or FORCED; None if the whole reply was free.
    number: of the reply among all those of the episode, in the order in which they were answered.
    In a single conversation it adds nothing, and may be 0 throughout.

    Weights 4 sampled the first token, of probability 3/4, and weights 5, published meanwhile, the
    second one, of probability 1/2; one other token was possible each time. At temperature 1/2, the
    probabilities are 9/10 (9 to 1 are the squares of 3 to 1) and 1/2:

        prompt_ids     5      8        "list the files"
        action_ids     3      1        the call, and the stop token
        logp_mu       -0.11  -0.69
        logp_old      -0.11  -0.69
        version        4      5
    """

    prompt_ids: NDArray[np.int32]
    action_ids: NDArray[np.int32]
    logp_mu: NDArray[np.float32]
    logp_old: NDArray[np.float32]
    version: NDArray[np.int32]
    action_text: str
    prompt_text: str
    reward: float = 0.0
    mask_id: NDArray[np.int16] | None = None
    kind: ReplyKind = ReplyKind.ACTION
    number: int = 0


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The prefix turns in the form that a rollout worker needs.

    actions: the replies to replay in the environment. seen: what the environment must show again,
    i.e. the instruction, then the observation after each action. The last observation is missing if
    the last action ends the episode.

        >>> Prefix(seen=("list the files", "a.txt"), actions=("ls",)).ends
        False
        >>> Prefix(seen=("list the files",), actions=("finish",)).ends
        True
    """

    seen: tuple[str, ...]
    actions: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.actions and len(self.seen) - len(self.actions) in (0, 1), self

    @property
    def ends(self) -> bool:
        """Whether the prefix ends the episode, so that the policy has nothing left to play."""
        return len(self.seen) == len(self.actions)


@dataclasses.dataclass(frozen=True)
class RolloutRequest:
    """An episode to play: its key, and the `key.num_prefix_turns` turns that it starts after.

    The ledger needs these turns as token ids (`prefix_turns`), and the rollout worker as text
    (`prefix`; None if the episode starts at the beginning of the task).
    """

    key: EpisodeKey
    prefix_turns: tuple[Turn, ...] = ()
    prefix: Prefix | None = None

    def __post_init__(self) -> None:
        replayed = len(self.prefix.actions) if self.prefix else 0
        assert self.key.num_prefix_turns == len(self.prefix_turns) == replayed, (self.key, replayed)


@dataclasses.dataclass(frozen=True)
class Episode:
    """The report of a rollout worker. It has no token ids; these stay in the policy's ledger.

    turns, malformed_calls: counted over the policy's own turns, without the prefix. Of an agent's
    program, the ledger counts the turns, and nobody the calls.
    policy_seconds: waiting for replies, also in the engine's queue. env_seconds: in the world;
    verifier_seconds: of these, in `grade` or the last step. The rest of `seconds` is the loop's.

    reward: of the whole episode, prefix included: what its steps earned, and the verdict on the
    state in which it was cut short. step_rewards: what each step earned, those of a prefix
    included; () of an agent's program. cut_replies: which of the policy's own replies, from 0, were
    cut before they held an action, by a limit that the policy's side knows; None of an agent's
    program, of whose replies nobody knows whether they were carried out. solved_at: the reward from
    which the task is solved. rewards: what was earned by the names that the world gives, without
    weights. metrics: what else it tells. told: by our loop, role and text of each message, and if
    it is a reply that met an error; of training only if `agent.record_episodes`.
    """

    key: EpisodeKey
    status: Status
    reward: float | None  # None unless STATUS_RULES[status].reward_valid
    turns: int
    malformed_calls: int
    seconds: float
    env_seconds: float
    policy_seconds: float = 0.0
    verifier_seconds: float = 0.0
    detail: str = ""  # a readable reason if the status is not FINISHED
    step_rewards: tuple[float, ...] = ()
    cut_replies: tuple[int, ...] | None = ()
    solved_at: float = 1.0
    rewards: tuple[tuple[str, float], ...] = ()
    metrics: tuple[tuple[str, float], ...] = ()
    told: tuple[tuple[str, str, bool], ...] = ()

    @property
    def is_solved(self) -> bool:
        """Whether the policy has solved the task. Whatever counts, imitates or shows a success asks
        this. Rewards may be sums of float32, so 1 less a rounding error is 1."""
        assert self.reward is not None, "an episode without a reward is neither solved nor failed"
        near = math.isclose(self.reward, self.solved_at, rel_tol=1e-6)
        return near or self.reward > self.solved_at


@dataclasses.dataclass(frozen=True)
class SideBranch:
    """Another conversation of an episode: a sub-agent's, or one that goes on from an earlier turn.

    The first `num_prefix_turns` turns are context: those that it shares with an earlier branch, in
    which their replies are trained on. expert_TLK: of all its tokens, as in `Trajectory`.

    If the agent went on from its first turn once more, the longest conversation has the turns a, b
    and c, and the side branch has (a, d) and `num_prefix_turns` 1. Sampled are a, b, c and d.
    """

    turns: tuple[Turn, ...]
    num_prefix_turns: int = 0
    expert_TLK: NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        assert self.num_prefix_turns < len(self.turns), "a branch without a reply of its own"


@dataclasses.dataclass(frozen=True)
class CallCounts:
    """What an episode's agents did to their conversations. forks: calls that do not continue the
    newest reply of theirs. edited: of these, those after a reply that the agent has changed. lost:
    replies that the agent may not have got. left_out: sampled tokens of no conversation that was
    chosen to be trained on. unseen: what agents sent and the policy was not shown, by name."""

    forks: int = 0
    edited: int = 0
    lost: int = 0
    left_out: int = 0
    unseen: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """An episode joined with its tokens. `turns` are its longest conversation.

    start_version: version of the weights that sampled the first token.
    num_prefix_turns: turns of the prefix, which were not sampled in this episode. Their
    log-probabilities are 0, their versions -1, and no policy-gradient loss includes them.
    rejected: statuses of the earlier attempts at this key, which were retried.
    expert_TLK: for router replay: the K experts to which the sampler routed each of the
    `num_tokens` tokens, in each of the L layers that have experts; int16, -1 for the last token,
    which the sampler never processed.
    side_branches: the agent's other conversations. None has more sampled turns.
    mask_Iw: the distinct sampling masks of all conversations, at most MAX_MASKS or MAX_CUT_MASKS,
    as int32 bit fields: bit v % 32 of word v // 32 says whether token v could be drawn. None if no
    reply was held to a schema or cut. sampling: how all replies were drawn.
    calls: counted while the episode was played.

    Of two turns, which read 2 and 1 tokens and wrote 2 and 1, `num_tokens` is 6. Without a prefix,
    `num_policy_tokens` is 3; with the first turn as the prefix it is 1.
    """

    episode: Episode
    turns: tuple[Turn, ...]
    start_version: int
    expert_TLK: NDArray[np.int16] | None = None
    num_prefix_turns: int = 0
    rejected: tuple[Status, ...] = ()
    side_branches: tuple[SideBranch, ...] = ()
    mask_Iw: NDArray[np.int32] | None = None
    sampling: Sampling = PLAIN
    calls: CallCounts = CallCounts()

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the longest conversation."""
        return sum(len(t.prompt_ids) + len(t.action_ids) for t in self.turns)

    @property
    def branches(self) -> tuple[Trajectory | SideBranch, ...]:
        """All conversations: the trajectory itself, then its side branches."""
        return (self, *self.side_branches)

    @property
    def sampled_turns(self) -> tuple[Turn, ...]:
        """The turns of all conversations whose replies were sampled, each of them once."""
        return tuple(turn for each in self.branches for turn in each.turns[each.num_prefix_turns :])

    @property
    def num_policy_tokens(self) -> int:
        return sum(len(t.action_ids) for t in self.sampled_turns)


# Instead of a chunk's id: no policy token of this episode; one without credit, which is context.
OUTSIDE, UNCREDITED = -1, -2


@dataclasses.dataclass(frozen=True)
class Batch:
    """Packed rows of fixed shape.

    segment_BT: 1.. per trajectory in its row, 0 on padding. position_BT: within the trajectory.
    chunk_BT: id within the row of the sampled chunk that contains the token; UNCREDITED in replies
    that earn no credit, OUTSIDE elsewhere (observations, prefix turns, padding).
    group_BT, member_BT: index of the group in the step, and of the member in it; -1 on padding.

    On tokens in sampled chunks, 0 elsewhere: logp_mu_BT, logp_old_BT and version_BT, as in `Turn`;
    advantage_BT; reward_BT, the chunk's own reward, on the chunk's last token only. In prefix
    turns, 0 elsewhere: imitate_BT, the weight of log pi(t) in the imitation term.

    None if not needed: logp_ref_BT, logp_prox_BT: log-probabilities under the reference policy and
    under the weights at the start of the step. top_id_BTk, logp_ref_top_BTk: the tokens that are
    most probable to the reference in each token's place. entropy_BT: factor on each token's entropy
    bonus (None: 1). expert_BTLK: for router replay, as in `Trajectory`, -1 also for padding.
    temperature_BT: what each token's logits are divided by, 1 outside of sampled chunks.
    mask_id_BT, mask_BIw: as in `Turn` and `Trajectory`, of each token the number of one of its
    row's sampling masks, FREE outside of sampled chunks. I is MAX_MASKS, or T if `Sampling.cuts`.
    weight_BT: the share of an episode's chunk tokens that is in this conversation; 1 on padding.
    read_BR: the tokens whose log pi the loss reads, and others (`data.reading`); None: all.

    A row of nine tokens, with a trajectory of two chunks whose outcome is 1, and one of one chunk,
    which failed. Their advantages are 1/2 and -1/2:

        tokens_BT      5    8    3    1    6    2    5    3    0
        segment_BT     1    1    1    1    1    1    2    2    0
        position_BT    0    1    2    3    4    5    0    1    0
        chunk_BT      -1   -1    0    0   -1    1   -1    2   -1
        member_BT      0    0    0    0    0    0    1    1   -1
        advantage_BT   0    0   .5   .5    0   .5    0  -.5    0
        reward_BT      0    0    0    0    0    1    0    0    0
    """

    tokens_BT: NDArray[np.int32]
    segment_BT: NDArray[np.int32]
    position_BT: NDArray[np.int32]
    chunk_BT: NDArray[np.int32]
    group_BT: NDArray[np.int32]
    member_BT: NDArray[np.int32]
    logp_mu_BT: NDArray[np.float32]
    logp_old_BT: NDArray[np.float32]
    version_BT: NDArray[np.int32]
    advantage_BT: NDArray[np.float32]
    reward_BT: NDArray[np.float32]
    imitate_BT: NDArray[np.float32]
    logp_ref_BT: NDArray[np.float32] | None = None
    logp_prox_BT: NDArray[np.float32] | None = None
    top_id_BTk: NDArray[np.int32] | None = None
    logp_ref_top_BTk: NDArray[np.float32] | None = None
    entropy_BT: NDArray[np.float32] | None = None
    expert_BTLK: NDArray[np.int16] | None = None
    temperature_BT: NDArray[np.float32] | None = None
    mask_id_BT: NDArray[np.int16] | None = None
    mask_BIw: NDArray[np.int32] | None = None
    weight_BT: NDArray[np.float32] | None = None
    read_BR: NDArray[np.int32] | None = None
