"""A limit of time for chat templates, which come with models, from anybody: one that loops for ever
is ended, and refused.

Jinja's sandbox, in which templates run, keeps them from files, processes and Python's internals.
Their memory has no limit of its own: a template that asks for more than there is fails, or ends the
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future

from jinja2 import nodes

SECONDS = 10.0  # for one text; templates that are meant well take milliseconds


class TemplateTimeout(ValueError):
    """A chat template had not ended after SECONDS."""


def rendered(render: Callable[[], str]) -> str:
    """Returns what `render` returns. TemplateTimeout if that takes longer than SECONDS.

    It runs in a thread of its own. What ends it there is an exception between two steps of Python:
    it leaves loops and recursions, and the operation in progress comes to its end first.
    """
    outcome: Future[str] = Future()
    released = threading.Event()

    def run() -> None:
        try:
            outcome.set_result(render())
        except BaseException as error:  # for whoever waits
            outcome.set_exception(error)
        with contextlib.suppress(SystemExit):
            released.wait()  # a thread that has ended leaves its ident to the next

    thread = threading.Thread(target=run, name="chat template", daemon=True)
    thread.start()
    try:
        return outcome.result(SECONDS)
    except TimeoutError:
        _end(thread)
        raise TemplateTimeout(
            f"the chat template has not ended after {SECONDS:g} s: give another in "
            "chat_template.jinja, such as that of the model's authors"
        ) from None
    finally:
        released.set()


def _end(thread: threading.Thread) -> None:
    assert thread.ident is not None
    exception = ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(*exception)


def check_operations(tree: nodes.Template) -> None:
    """Raises ValueError for powers: one alone can take for ever, in which nothing ends it."""
    if power := next(tree.find_all(nodes.Pow), None):
        raise ValueError(f"the chat template computes a power in line {power.lineno}: leave it out")
