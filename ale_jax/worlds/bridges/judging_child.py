"""Judges replies in a process of its own, where a check that never ends is ended by an alarm.

    python judging_child.py CHECK

Each line of stdin is {"reply", "answer", "seconds"}, and each of stdout {"right"} or {"error"},
after a first {}: it is ready. It needs nothing of this package, so that it starts at once.
math-verify's own limit of time is an alarm of the main thread, which one call of C outlives.
"""

import json
import os
import re
import resource
import signal
import sys

START_SECONDS = 120.0
MEMORY = 8 << 30  # of addresses; a power of powers would fill the machine


def regex(reply: str, answer: str) -> bool:
    return re.fullmatch(answer, reply, re.S) is not None


def math(reply: str, answer: str) -> bool:
    from math_verify import parse, verify

    gold = parse(f"${answer}$", parsing_timeout=None)
    if not gold:
        raise ValueError(f"math-verify finds no value in {answer!r:.80}")
    given = parse(reply, parsing_timeout=None)
    return bool(verify(gold, given, timeout_seconds=None))


CHECKS = {"regex": regex, "math": math}


def main(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no verdict
    # The default action ends the process, whatever it is doing, also within one call of C.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, START_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    check = CHECKS[name]
    if name == "math":
        check("$1$", "1")  # what it loads at its first use takes longer than a check
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        try:
            told: dict[str, object] = {"right": check(asked["reply"], asked["answer"])}
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"[:200]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
