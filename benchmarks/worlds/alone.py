"""Plays a library of tasks without ALE-JAX, in its own Python: alone.py gem|reasoning_gym|textarena

Reads a job of JSON per line, {"name": ..., "seeds": [...]}, and answers each with a line: for each
seed what was seen first, and then [reply, observation, reward, terminated, truncated] or
[reply, {"raised": ...}] for each reply. It imports nothing of ours.
"""

import json
import os
import random
import re
import sys

TURNS = 6
WORDS = (
    *("left", "up", "right", "down", "A", "B", "hit", "stand", "yes", "e", "red", "crane", ""),
    *("1", "2", "5", "10", "0 1", "1 2", "2 3 4", "1 2 3 4", "reveal 1 1", "A C", "1 1 5", "junk"),
)
FORMS = ("\\boxed{%s}", "[%s]", "%s")
EXAMPLE = re.compile(r"\[[^\[\]\n]{1,16}\]|\\boxed\{[^{}\n]{1,16}\}")


def gem_episode(name, seed):
    import gem

    env, rng = gem.make(name), random.Random(seed)
    observation, info = env.reset(seed)
    yield seen(observation, info)
    for _ in range(TURNS):
        reply = moved(rng, observation) if seed % 2 else sampled(env) or moved(rng, observation)
        try:
            observation, reward, terminated, truncated, info = env.step(reply)
        except Exception as error:
            yield [reply, {"raised": type(error).__name__}]
            return
        ends = [bool(terminated), bool(truncated)]
        yield [reply, seen(observation, info), float(reward), *ends]
        if any(ends):
            return


def sampled(env):
    """A valid move, of which the game's own random numbers are not to know."""
    state = random.getstate()
    try:
        return env.sample_random_action()
    except NotImplementedError:
        return ""
    finally:
        random.setstate(state)


def textarena_episode(name, seed):
    import textarena

    env, rng = textarena.make(name), random.Random(seed)
    env.reset(num_players=1, seed=seed)
    observation = env.get_observation()[1]
    yield observation
    for _ in range(TURNS):
        reply = moved(rng, observation)
        try:
            done, _ = env.step(reply)
            reward = float((env.close()[0] or {}).get(0, 0.0)) if done else 0.0
        except Exception as error:  # also of a reward that is a text
            yield [reply, {"raised": type(error).__name__}]
            return
        if done:
            yield [reply, "", reward, True, False]
            return
        observation = env.get_observation()[1]
        yield [reply, observation, 0.0, False, False]


def reasoning_gym_entry(name, seed):
    """Scores replies, and last the entry's own answer, each by itself."""
    import reasoning_gym

    dataset, rng = reasoning_gym.create_dataset(name, size=1, seed=seed), random.Random(seed)
    entry = dataset[0]
    yield entry["question"]
    for reply in [*(moved(rng, entry["question"]) for _ in range(TURNS)), entry["answer"]]:
        try:
            yield [reply, "", float(dataset.score_answer(answer=reply, entry=entry)), True, False]
        except Exception as error:
            yield [reply, {"raised": type(error).__name__}]


def moved(rng, observation):
    """A random move, as one of the examples that were told, or in a notation of the libraries."""
    examples = EXAMPLE.findall(observation)
    if examples and rng.random() < 0.7:
        return rng.choice(examples)
    return rng.choice(FORMS) % rng.choice(WORDS)


def seen(observation, info):
    return f"{info.get('prefix', '')}{observation}{info.get('suffix', '')}"


EPISODES = {
    "gem": gem_episode,
    "textarena": textarena_episode,
    "reasoning_gym": reasoning_gym_entry,
}


def played(library, name, seed):
    told = []
    try:
        for each in EPISODES[library](name, seed):
            told.append(each)
    except Exception as error:
        told.append({"raised": f"{type(error).__name__}: {error}"[:200]})
    return told


def main(library):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the libraries print
    for line in sys.stdin:
        job = json.loads(line)
        told = [played(library, job["name"], seed) for seed in job["seeds"]]
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
