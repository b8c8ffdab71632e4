"""One episode's calls to the policy: from messages to ids, and from sampled ids to a reply."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import string
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from ale_jax.errors import RolloutsFailed
from ale_jax.gateway.conversations import Conversations, Policy, Sampled, StopChecker
from ale_jax.gateway.custody.calls import Branch, Call, GivenTurn
from ale_jax.gateway.custody.token_tree import BranchChoice, TokenTree
from ale_jax.gateway.formats.reply import Preview
from ale_jax.gateway.language import Language
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import (
    ApiError,
    ChatRequest,
    Choice,
    ContextFull,
    Finish,
    SampleOptions,
    TokenLogprob,
)
from ale_jax.status import Status

MAX_SEED = 2**64 - 1
MAX_UNSEEN, MAX_NAME = 32, 80  # names of what is left out, and their letters
ID_LETTERS, ID_LENGTH = string.ascii_letters + string.digits, 9  # as Mistral's template wants them

See = Callable[[int, Preview], None]


@dataclasses.dataclass(frozen=True)
class EpisodeOptions:
    """What an episode's agents may ask for. kept: as for `Conversations`. obeys: whether a request
    decides how it is sampled; in training the config does, or an agent that asks for temperature 0
    would never explore. Schemas hold either way. max_replies: that the episode's agents get; None
    for no limit. max_tokens: of a conversation, the reply included; None for no limit. max_chars:
    of a conversation and its tools; longer ones are refused before they are tokenized, which takes
    seconds for ten megabytes; None for no limit. given: the turns that the first conversation
    begins with, and that were not sampled in this episode. on_turn: called with True when the agent
    begins to wait for the policy, and with False when it has all its answers, by any thread.
    """

    kept: int = 1
    obeys: bool = True
    max_replies: int | None = None
    max_tokens: int | None = None
    max_chars: int | None = None
    given: Sequence[GivenTurn] = ()
    on_turn: Callable[[bool], None] = lambda waits: None


@dataclasses.dataclass(frozen=True)
class Pending:
    """A call that the engine answers. num_new: the ids that it has to read for it, at most."""

    call: Call
    num_new: int
    conversation: int
    sampled: Future[Sampled]

    @property
    def num_written(self) -> int:
        """Counts the ids of the reply, of a call that is sampled; 0 if it failed."""
        return 0 if self.sampled.exception() else len(self.sampled.result().ids)


class GatewayEpisode:
    """The conversations of one episode's agents. Thread-safe."""

    def __init__(
        self,
        tree: TokenTree,
        policy: Policy,
        language: Language,
        new_key: Callable[[int], np.ndarray],
        options: EpisodeOptions = EpisodeOptions(),
    ):
        """new_key: the random key of the engine's conversation with this number."""
        self.tree, self._options = tree, options
        self._policy, self._language = policy, language
        self._conversations = Conversations(policy, new_key, options.kept)
        self._lock = threading.Lock()
        self._given = tuple(options.given)  # until the first call has shown their messages
        self._waiting: set[Call] = set()
        self._asked = 0
        self._ended = False
        self._limit: Status | None = None
        self._unseen: dict[str, None] = {}

    @property
    def limit(self) -> Status | None:
        """The limit at which the last call was refused; None if it was answered."""
        return self._limit

    @property
    def unseen(self) -> tuple[str, ...]:
        """What its agents sent and the policy was not shown, by name."""
        return tuple(self._unseen)

    def ask(self, request: ChatRequest, see: See | None = None) -> list[Pending]:
        """Lets the policy answer, `request.options.n` times.

        see: is told of each reply while it is written, by the engine's thread: the reply's number,
        and all that is sure so far.

        Raises:
          ApiError: 410 after the end of the episode, 403 after its last reply, 400 if the messages
            cannot be answered.
        """
        self._require_short(request)
        options = self._sampled_by(request)
        with _refusing("prompt" if request.prompts else "messages"):
            calls = self._calls(request)
        for call in filter(self._is_full, calls):  # here: a stream is refused before it begins
            raise self._context_full(call)
        self._count(len(calls))
        self._note_unseen(request)
        self._wait_for(calls)
        pending: list[Pending] = []
        try:
            for number, call in enumerate(calls):
                stop_checker = self._stop_checker(request, number, see)
                pending.append(self._begin(call, options, number, stop_checker))
        except ApiError:
            for each in pending:
                self.cancel(each)
            for call in calls:
                self._wait_no_more(call)
            raise
        return pending

    def sampled(self, pending: Pending) -> Sampled:
        """Returns what was sampled for a call, of which nothing is known yet to the tree.

        Raises:
          ApiError: 410 if the episode has ended meanwhile, 503 if the engine has.
        """
        try:
            return pending.sampled.result()
        except RolloutsFailed as error:
            raise self._failed(error) from error

    def record(
        self, pending: Pending, reply: ChatMessage, sampled: Sampled, stop_text: str = ""
    ) -> None:
        """Takes over what was sampled. reply: as it is sent to the agent. stop_text: as in
        `Call`."""
        self.tree.finish(pending.call, reply, sampled, sampled.stop, stop_text)
        self._limit = None
        self._conversations.answered(pending.call, pending.conversation)
        self._wait_no_more(pending.call)

    def answer(self, pending: Pending, request: ChatRequest) -> Choice:
        """Returns the reply to the request, once it is sampled.

        Raises:
          ApiError: 400 if the context is full, or as `sampled`.
        """
        sampled = self.sampled(pending)
        if not len(sampled.ids):
            self.drop(pending)
            raise self._context_full(pending.call)
        said = self._language.read(sampled.ids, request)
        # A model that names its calls reads those names beside their results.
        named = tuple(
            dataclasses.replace(each, id=each.id or _call_id(pending.call, sampled.ids, number))
            for number, each in enumerate(said.calls)
        )
        reply = ChatMessage("assistant", said.content, said.reasoning, named)
        self.record(pending, reply, sampled, said.stop)
        finish: Finish = "length" if sampled.stop != "stop" else "tool_calls" if named else "stop"
        return Choice(reply, finish, self._logprobs(sampled, request.options), said.stop)

    def cancel(self, pending: Pending, was_sent: bool = False) -> None:
        """Gives up a call whose client does not get the answer, which is counted as lost if there
        is one, or may be. was_sent: as in `Call`."""
        if not _came_to_nothing(pending.sampled):
            self.tree.lose(pending.call, was_sent)
        self.drop(pending)

    def drop(self, pending: Pending) -> None:
        """Ends a call to which there is no reply."""
        self._conversations.leave(pending.call, pending.conversation)
        self._wait_no_more(pending.call)

    def stop(self) -> None:
        """Lets the replies in progress and all later calls fail."""
        self._ended = True
        self._conversations.end()

    def end(self, choice: BranchChoice) -> list[Branch]:
        """Refuses all further calls; returns what to train on."""
        self.stop()
        return self.tree.branches(choice)

    def count_tokens(self, request: ChatRequest) -> int:
        """Counts the tokens of the prompt that the request would be read as. ApiError (400) as for
        `ask`."""
        self._require_short(request)
        with _refusing("messages"):
            variables = self._language.variables_of(request)
            placed = self.tree.place(request.messages, request.tools, variables)
            return len(placed.context_ids())

    def _calls(self, request: ChatRequest) -> list[Call]:
        """ValueError for messages or prompts that cannot be answered."""
        count = request.options.n
        if request.prompts:
            prompts = list(map(self._language.prompt_ids, request.prompts))
            again = request.is_retry
            return [self.tree.begin_text(ids, again) for ids in prompts for _ in range(count)]
        self._insert_given(request)
        variables = self._language.variables_of(request)
        told = request.messages, request.tools, request.is_retry, variables
        return [self.tree.begin(*told) for _ in range(count)]

    def _count(self, replies: int) -> None:
        """ApiError (403) if the episode's agents have had all the replies that they may get."""
        most = self._options.max_replies
        with self._lock:
            if most is not None and self._asked + replies > most:
                self._limit = Status.TURN_LIMIT
                text = f"the episode's limit of {most} replies is reached"
                raise ApiError(403, text, code=Status.TURN_LIMIT.value)
            self._asked += replies

    def _note_unseen(self, request: ChatRequest) -> None:
        with self._lock:
            for name in request.unseen:
                if len(self._unseen) < MAX_UNSEEN:
                    self._unseen.setdefault(name[:MAX_NAME])

    def _sampled_by(self, request: ChatRequest) -> SampleOptions:
        """How the replies are sampled. ApiError (400) for what cannot be."""
        options = dataclasses.replace(
            request.options, grammar=self._language.grammar(request) or ""
        )
        if self._options.obeys:
            return options
        # What a reply has to be is the task; how it is drawn, the config decides.
        kept = ("max_tokens", "stop", "n", "grammar")
        return SampleOptions(**{name: getattr(options, name) for name in kept})

    def _logprobs(
        self, sampled: Sampled, options: SampleOptions
    ) -> tuple[TokenLogprob, ...] | None:
        if options.top_logprobs is None:
            return None
        top: list[tuple[TokenLogprob, ...]] = [()] * len(sampled.ids)
        if options.top_logprobs and self._options.obeys:
            assert sampled.top_id_Tk is not None and sampled.top_logp_Tk is not None
            allowed_Tk = np.isfinite(sampled.top_logp_Tk)  # a grammar may allow fewer than asked
            rows = zip(sampled.top_id_Tk, sampled.top_logp_Tk, allowed_Tk, strict=True)
            top = [self._named(id_k[is_k], logp_k[is_k]) for id_k, logp_k, is_k in rows]
        named = zip(self._named(sampled.ids, sampled.logp_plain), top, strict=True)
        return tuple(dataclasses.replace(each, top=others) for each, others in named)

    def _named(self, ids: np.ndarray, logp: np.ndarray) -> tuple[TokenLogprob, ...]:
        text, data = self._language.token_text, self._language.token_bytes
        named = zip(ids.tolist(), logp.tolist(), strict=True)
        return tuple(TokenLogprob(text(id), p, data=data(id)) for id, p in named)

    def _require_short(self, request: ChatRequest) -> None:
        most = self._options.max_chars
        if most is not None and request.num_chars > most:
            raise self._context_full()

    def _insert_given(self, request: ChatRequest) -> None:
        """ValueError if the first conversation does not begin with the given turns."""
        with self._lock:
            if self._given:
                self.tree.insert_given(self._given, request.messages, request.tools)
                self._given = ()

    def _is_full(self, call: Call) -> bool:
        """Whether there is no room for a reply."""
        most = self._options.max_tokens
        return most is not None and len(call.context_ids()) >= most

    def _context_full(self, call: Call | None = None) -> ContextFull:
        """call: None if it was not tokenized."""
        self._limit = Status.TOKEN_LIMIT
        tokens = 0 if call is None else len(call.context_ids()) + 1
        most = self._options.max_tokens
        return ContextFull((tokens, most if most is not None else tokens - 1) if tokens else None)

    def _stop_checker(
        self, request: ChatRequest, number: int, see: See | None
    ) -> StopChecker | None:
        stops, language = request.options.stop, self._language
        if not stops and see is None:
            return None

        def stop_checker(ids: np.ndarray) -> int | None:
            if see is not None:
                see(number, language.preview(ids, request))
            return language.end_of(ids, stops)

        return stop_checker

    def _begin(
        self, call: Call, options: SampleOptions, number: int, stop_checker: StopChecker | None
    ) -> Pending:
        """number: of the reply, among those to one request."""
        place = self._conversations.place(call)
        if place is None:
            raise ApiError(410, "the episode has ended")
        conversation, new_ids, key = place.conversation, place.new_ids, place.key
        if options.seed is not None:
            # The same request with the same seed is answered in the same way, in any conversation.
            key = np.random.SeedSequence([options.seed & MAX_SEED, number]).generate_state(2)
        try:
            with _refusing():  # an option, of which the text says which one
                sampled = self._policy.reply(conversation, new_ids, options, key, stop_checker)
        except (ApiError, RolloutsFailed) as error:
            self._conversations.leave(call, conversation)
            raise error if isinstance(error, ApiError) else self._failed(error) from error
        return Pending(call, len(new_ids), conversation, sampled)

    def _failed(self, error: RolloutsFailed) -> ApiError:
        if self._ended:
            return ApiError(410, "the episode has ended")
        return ApiError(503, f"the policy's engine does not answer: {error}")

    def _wait_for(self, calls: Sequence[Call]) -> None:
        with self._lock:
            waited, self._waiting = bool(self._waiting), self._waiting.union(calls)
        if not waited:
            self._options.on_turn(True)

    def _wait_no_more(self, call: Call) -> None:
        with self._lock:
            waited = call in self._waiting
            self._waiting.discard(call)
            is_over = waited and not self._waiting
        if is_over:
            self._options.on_turn(False)


def _came_to_nothing(sampled: Future[Sampled]) -> bool:
    if not sampled.done() or sampled.cancelled():
        return False
    return sampled.exception() is not None or not len(sampled.result().ids)


@contextlib.contextmanager
def _refusing(field: str | None = None) -> Iterator[None]:
    """Tells the client what is wrong with a field of its request."""
    try:
        yield
    except ValueError as error:
        raise ApiError(400, str(error), field) from error


def _call_id(call: Call, ids: np.ndarray, number: int) -> str:
    """The id of a call in a reply, by all that was said before: templates may show it, and a run
    that is repeated reads the same."""
    told = call.start + np.asarray(ids, np.int32).tobytes() + bytes([number % 256])
    digest = hashlib.sha256(told).digest()
    return "".join(ID_LETTERS[byte % len(ID_LETTERS)] for byte in digest[:ID_LENGTH])
