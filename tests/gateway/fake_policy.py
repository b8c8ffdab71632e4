"""A policy that says what it is told to say, and remembers what it was asked."""

import threading
from concurrent.futures import Future

import numpy as np

from ale_jax.errors import RolloutsFailed
from tests.gateway.speech import read, sample


class EngineEnded(RolloutsFailed):
    pass


class Written:
    def __init__(self, tokens, stop):
        vars(self).update(vars(tokens), stop=stop)


class FakePolicy:
    """say: from the messages that it reads, as (role, text), to its reply; None lets the call wait
    until `end`, when it has written what it `begins` with. asked: for each call the conversation,
    and the ids that were new in it."""

    def __init__(self, say):
        self.say, self.asked, self.ended = say, [], []
        self.begins = "I wait"
        self._contexts, self._waiting, self._lock = {}, {}, threading.Lock()

    def open(self):
        with self._lock:
            self._contexts[len(self._contexts)] = np.zeros(0, int)
            return len(self._contexts) - 1

    def reply(self, conversation, new_ids, options, key, stop_checker):
        future = Future()
        with self._lock:
            self.asked.append((conversation, new_ids))
            context = np.concatenate([self._contexts[conversation], new_ids])
            text = self.say(read(context)[:-1])
            if text is None:
                if stop_checker:
                    stop_checker(sample(self.begins, 0, cut=True).ids)
                self._waiting[conversation] = future
                return future
            cut = options.max_tokens is not None and len(text) > options.max_tokens
            tokens = sample(text[: options.max_tokens] if cut else text, 0, cut=cut)
            self._contexts[conversation] = np.concatenate([context, tokens.ids])
        if stop_checker:
            for end in range(1, len(tokens.ids) + 1):
                stop_checker(tokens.ids[:end])
        future.set_result(Written(tokens, "length" if cut else "stop"))
        return future

    def end(self, conversation):
        with self._lock:
            self.ended.append(conversation)
            waiting = self._waiting.pop(conversation, None)
        if waiting:
            waiting.set_exception(EngineEnded("the conversation was ended"))
