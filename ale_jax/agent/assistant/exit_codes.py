"""How `ale-agent` ends, as a script sees it."""

from __future__ import annotations

from ale_jax.agent.assistant.events import Ended

FINISHED = 0
FAILED = 1  # no answer: a limit, the endpoint, a setting
USAGE = 2  # argparse's own
REFUSED = 3  # an answer, but no call of a tool was permitted
INTERRUPTED = 130  # by Ctrl-C or SIGTERM


def code_of(ended: Ended) -> int:
    return {"finished": FINISHED, "refused": REFUSED}.get(ended.reason, FAILED)
