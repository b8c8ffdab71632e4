"""How an episode ended, and what the system does with it."""

from __future__ import annotations

import dataclasses
import enum


class Status(enum.StrEnum):
    """How an episode ended. Every trajectory has exactly one status."""

    FINISHED = "finished"  # the agent declared that it was done
    TURN_LIMIT = "turn_limit"  # graded in the state at the limit
    TIME_LIMIT = "time_limit"  # its program was killed; graded in the state that it left
    TOKEN_LIMIT = "token_limit"  # the context is full; graded in the state at the limit
    REPLY_LIMIT = "reply_limit"  # the reply that ended it was cut; judged as it stood
    BROKE_OFF = "broke_off"  # its program ended with an error; graded in the state that it left
    NO_VERDICT = "no_verdict"  # the agent's work, and not the host, kept the verifier from one
    SANDBOX_START_FAILED = "sandbox_start_failed"
    SANDBOX_LOST = "sandbox_lost"
    MODEL_ERROR = "model_error"  # the policy's engine did not answer
    CALL_LOST = "call_lost"  # it is not sure which answers of the policy the agent has got
    AGENT_FAILED = "agent_failed"  # the program that should play could not be started
    VERIFIER_ERROR = "verifier_error"  # the verifier gives no verdict on the untouched task either
    ENV_ERROR = "env_error"  # the world's own code raised an error
    ACTOR_LOST = "actor_lost"  # the process that played the episode died
    DEADLINE = "deadline"  # a deadline of the config's section `deadlines` was missed
    CANCELLED = "cancelled"  # stopped: at shutdown, or because it became too old to be trained on
    REPLAY_DIVERGED = "replay_diverged"  # the prefix turns led to other observations than before
    NOT_REPRODUCED = "not_reproduced"  # its replies, replayed, led to other observations
    ILLEGAL_CALLS = "illegal_calls"  # too many replies in a row without a valid tool call


@dataclasses.dataclass(frozen=True)
class StatusRule:
    """What the system does with an episode of a given status.

    reward_valid: the reward is a valid judgement of the policy and may be learned from.
    retry: the same task is played again, from the same initial state.
    infra: the cause is the system, not the policy; the sandbox is not reused.
    redraw: the retry draws new random numbers. With the same numbers, a deterministic world would
    only repeat what was rejected. After a fault of the system the same numbers are used, so that
    the retry leaves no trace in the results.
    truncated: a limit ended the episode, and not the policy.
    """

    reward_valid: bool
    retry: bool
    infra: bool
    redraw: bool = False
    truncated: bool = False


STATUS_RULES: dict[Status, StatusRule] = {
    Status.FINISHED: StatusRule(reward_valid=True, retry=False, infra=False),
    **{
        limit: StatusRule(reward_valid=True, retry=False, infra=False, truncated=True)
        for limit in (Status.TURN_LIMIT, Status.TIME_LIMIT, Status.TOKEN_LIMIT, Status.REPLY_LIMIT)
    },
    Status.BROKE_OFF: StatusRule(reward_valid=True, retry=False, infra=False),
    Status.NO_VERDICT: StatusRule(reward_valid=True, retry=False, infra=False),  # the reward is 0
    Status.SANDBOX_START_FAILED: StatusRule(reward_valid=False, retry=True, infra=True),
    Status.SANDBOX_LOST: StatusRule(reward_valid=False, retry=True, infra=True),
    Status.MODEL_ERROR: StatusRule(reward_valid=False, retry=True, infra=True),
    Status.CALL_LOST: StatusRule(reward_valid=False, retry=False, infra=True),
    Status.AGENT_FAILED: StatusRule(reward_valid=False, retry=True, infra=True),
    Status.VERIFIER_ERROR: StatusRule(reward_valid=False, retry=True, infra=True),
    Status.ENV_ERROR: StatusRule(reward_valid=False, retry=True, infra=True),
    Status.ACTOR_LOST: StatusRule(reward_valid=False, retry=True, infra=True),
    Status.DEADLINE: StatusRule(reward_valid=False, retry=True, infra=True),
    Status.CANCELLED: StatusRule(reward_valid=False, retry=False, infra=False),
    Status.REPLAY_DIVERGED: StatusRule(reward_valid=False, retry=True, infra=True, redraw=True),
    Status.NOT_REPRODUCED: StatusRule(reward_valid=False, retry=True, infra=True, redraw=True),
    Status.ILLEGAL_CALLS: StatusRule(reward_valid=False, retry=True, infra=False, redraw=True),
}
