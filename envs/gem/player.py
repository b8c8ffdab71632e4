"""A program that plays one game of gem-llm. Requests and answers are JSON, one per line.

It runs in a separate Python environment, because the library needs other versions of packages than
ALE-JAX, seeds the random numbers of its whole process, and configures the process's logging.
Without an argument it answers with the names of the games instead.
"""

import json
import os
import sys

OFFLINE = ("game:", "rg:")  # the others fetch data


def main(words: list[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not be taken for an answer

    def tell(answer: dict) -> None:
        print(json.dumps(answer, default=str), file=answers, flush=True)

    try:
        play(words, tell)
    except Exception as error:  # of any kind; it is reported to the caller
        tell({"error": f"{type(error).__name__}: {error}"})


def play(words: list[str], tell) -> None:
    from gem import make
    from gem.envs.registration import ENV_REGISTRY

    if not words:
        tell({"games": sorted(name for name in ENV_REGISTRY if name.startswith(OFFLINE))})
        return
    game = make(words[0])
    tell({"game": words[0]})
    for line in sys.stdin:
        request = json.loads(line)
        if "seed" in request:
            observation, info = game.reset(request["seed"])
            tell({"reset": [str(observation), info]})
        else:
            observation, reward, terminated, truncated, info = game.step(request["action"])
            end = [bool(terminated), bool(truncated)]
            tell({"step": [str(observation), float(reward), *end, info]})


if __name__ == "__main__":
    main(sys.argv[1:])
