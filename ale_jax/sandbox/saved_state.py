"""A sandbox's state put back from a snapshot, with proof that nothing beside the files was lost."""

from __future__ import annotations

import dataclasses
import re

from ale_jax.sandbox.api import Sandbox

# A sum over all that a session has beside files: how the last command ended, how many processes
# there are, where it stands, masks, traps, jobs, options, limits, functions, and variables but for
# those that change by themselves; and over what a snapshot may lose of files: modes, links, what
# cannot be read. The session itself says it, so that a `cd` or an `export` shows.
PROBE = r"""echo "$? $(set -- /proc/[0-9]*; echo $#)"
{ pwd; umask; trap; alias; jobs; set +o; shopt; ulimit -a; declare -f
declare -p | grep -vE '^declare -[^ ]+ (__token|BASHPID|BASH_[A-Z]+|EPOCH[A-Z]+|S?RANDOM)=' |
grep -vE '^declare -[^ ]+ (SECONDS|LINENO|PIPESTATUS|_)='
find /work /tmp -printf '%p %y %m %s %l\n' | sort; } | sha256sum
find /work -maxdepth 0 -printf '%y\n'"""
# An image without these tools proves nothing.
_PROVED = re.compile(r"[0-9]+ [0-9]+\n[0-9a-f]{64}  -\nd\n?")


@dataclasses.dataclass(frozen=True)
class SavedState:
    """files: of `Sandbox.snapshot`; session: what PROBE printed."""

    files: bytes
    session: str


def save(sandbox: Sandbox) -> SavedState | None:
    """The state as it stands; None where the session cannot be described. Errors: SandboxError."""
    session = _probe(sandbox)
    return None if session is None else SavedState(sandbox.snapshot(), session)


def load(sandbox: Sandbox, saved: SavedState) -> bool:
    """Puts the files back, in a new session; False if that is not all there was: a snapshot holds
    no directory that the session stood in, no variable, no process. Errors: SandboxError.
    """
    sandbox.restore(saved.files)
    return _probe(sandbox) == saved.session


def _probe(sandbox: Sandbox) -> str | None:
    output = sandbox.run(PROBE).output
    return output if _PROVED.fullmatch(output) else None
