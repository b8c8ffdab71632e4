"""What a person types: lines, and requests, which can be edited and have a history."""

from __future__ import annotations

import signal
from pathlib import Path

KEPT_REQUESTS = 1000


def read_line(prompt: str) -> str:
    """Returns what a person types. EOFError at the end, KeyboardInterrupt for Ctrl-C.

    All else waits meanwhile, and nothing else is going on. In a thread, it could not be given up.
    """
    # The event loop's handler would only take note, and the loop would hear of it when it goes on,
    # and end the next work.
    before, loop = (
        signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.set_wakeup_fd(-1),
    )
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()  # the cursor is still behind the prompt
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        signal.set_wakeup_fd(loop)


class Requests:
    """Reads requests at a prompt. The newest ones are in a file, for later sessions."""

    def __init__(self, history: Path):
        # From now on `input` edits lines. Not before: it writes to the terminal.
        import readline

        self._readline, self._history = readline, history
        readline.set_auto_history(False)  # an answer to a question is no request
        readline.set_history_length(KEPT_REQUESTS)
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)  # what a user asks is nobody else's to read
        readline.read_history_file(history)

    def read(self) -> str:
        """Raises what `read_line` does."""
        line = read_line("> ")
        if line.strip():
            self._readline.add_history(line)
            self._readline.append_history_file(1, self._history)
        return line
