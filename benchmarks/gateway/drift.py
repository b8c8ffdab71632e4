"""Do the ids that a policy sampled stay the same when its replies come back as text?

Conversations of several turns in the tokens of real families. The replies are written as policies
write them: JSON with or without spaces and escapes, and now and then a token that ends where the
tokenizer would let it go on. What the next prompt has is compared with what was sampled, and so is
what a gateway would have that renders all messages anew.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest, SampleOptions
from benchmarks.gateway.families import FAMILIES, Call, FamilyStage
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import ScriptedPolicy

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOL = {"name": "bash", "description": "Runs a command.", "parameters": PARAMETERS}
TOOLS = ({"type": "function", "function": TOOL},)
TASK = "Find out what is in the folder, and repair it. 修复 naïve 👩‍👩‍👧"
TEXTS = (
    *("I look.", "I see: naïve café, e\u0301.", "Zwölf Boxkämpfer  jagen\n\nViktor.", "修复完成。"),
    *(
        "👩‍👩‍👧 and 🇩🇪",
        "Let me check the file:\n",
        "  - a\n  - b\n",
        "`x = 10000`; y=3.14159",
        "Done!!!",
    ),
)
COMMANDS = (
    *("ls", "ls -la /tmp && echo done", "printf 'a\\tb\\n' > x.txt", 'echo "naïve 修复 👩‍👩‍👧"'),
    *("cat <<'EOF' > a.py\nfor i in range(10):\n    print(i)\nEOF", "grep -rn 'a/b' ../src"),
)
RESULTS = ("a.txt\nb.txt", "", "done\n", "error: 修复 naïve", "   1\n   2\n", "👩‍👩‍👧\t<tool_call>")
WRITERS: tuple[Callable[[Any], str], ...] = (
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    lambda value: json.dumps(value, ensure_ascii=False, indent=2),
    lambda value: json.dumps(value).replace("/", "\\/"),
)
USUAL_SHARE = 0.7  # of calls that are written as the template writes them
SPLIT_SHARE = 0.3  # of replies that have a token as no tokenizer would write it
TURNS = (3, 8)


def measure(plan: Plan, cache: Path) -> dict[str, Any]:
    """cache: a folder for what npm has."""
    each, total = plan.drift_conversations // len(FAMILIES), collections.Counter[str]()
    by_family = {}
    for family in FAMILIES:
        stage = FamilyStage(family, cache / "tokenizers")
        played = (play(stage, f"{plan.seed}/{family.name}/{n}") for n in range(each))
        found = sum(played, collections.Counter[str]())
        by_family[family.name] = _figures(found)
        total += found
    figures = {"drift_conversations": each * len(FAMILIES)} | _figures(total)
    return figures | {"drift_by_family": by_family}


def _figures(counts: collections.Counter[str]) -> dict[str, Any]:
    """anew: of a gateway that renders all messages anew."""
    share = counts["changed_anew"] / max(1, counts["compared"])
    return {
        "drift_tokens": counts["changed"],
        "drift_policy_tokens": counts["sampled"],
        "drift_calls": counts["calls"],
        "drift_tokens_anew": counts["changed_anew"],
        "drift_share_anew": round(share, 4),
        "drift_histories": counts["histories"],
        "drift_histories_changed_anew": counts["histories_changed"],
        "drift_histories_refused_anew": counts["refused"],
    }


@dataclasses.dataclass
class History:
    """A conversation as its agent tells it. spans: where its ids have replies, and their ids."""

    messages: list[ChatMessage]
    spans: list[tuple[int, np.ndarray]] = dataclasses.field(default_factory=list)

    def changed(self, context: np.ndarray) -> int:
        """Tokens of the policy that a context does not have where they were."""
        kept = 0
        for start, ids in self.spans:
            there = context[start : start + len(ids)]
            kept += int((there == ids[: len(there)]).sum())
        return self.tokens - kept

    def changed_in_order(self, context: np.ndarray) -> int:
        """Those that it does not have anywhere in their order, as far as two texts can be laid
        beside each other."""
        whole, is_policy = self._whole()
        matcher = difflib.SequenceMatcher(None, whole.tolist(), context.tolist(), autojunk=False)
        kept = sum(int(is_policy[m.a : m.a + m.size].sum()) for m in matcher.get_matching_blocks())
        return self.tokens - kept

    @property
    def tokens(self) -> int:
        return sum(len(ids) for _, ids in self.spans)

    def saw(self, context: np.ndarray, ids: np.ndarray) -> None:
        self.spans.append((len(context), ids))
        self._ids = np.concatenate([context, ids])

    def _whole(self) -> tuple[np.ndarray, np.ndarray]:
        is_policy = np.zeros(len(self._ids), bool)
        for start, ids in self.spans:
            is_policy[start : start + len(ids)] = True
        return self._ids, is_policy


def play(stage: FamilyStage, seed: str) -> collections.Counter[str]:
    """One agent's conversation, whose history it may replace by a summary."""
    rng, counts = random.Random(seed), collections.Counter[str]()
    policy = ScriptedPolicy(lambda context: _reply(stage, rng))
    episode, history = stage.episode(policy), History(_first(stage, TASK))
    for _ in range(rng.randint(*TURNS)):
        if len(history.spans) > 1 and rng.random() < 0.15:
            counts += _compared_anew(stage, history)
            history = History(_first(stage, f"So far: {rng.choice(RESULTS)}"))
        # Some replies are cut off.
        options = SampleOptions(max_tokens=rng.choice((None, None, None, 12)))
        request = ChatRequest("m", tuple(history.messages), TOOLS, options=options)
        (pending,) = episode.ask(request)
        said = episode.answer(pending, request).message
        written = policy.written[-1]
        counts["changed"] += history.changed(written.context)
        counts["calls"] += 1
        counts["sampled"] += len(written.ids)
        history.saw(written.context, written.ids)
        history.messages += [said, *_after(said, rng)]
    counts += _compared_anew(stage, history)
    episode.end("all")
    return counts


def _compared_anew(stage: FamilyStage, history: History) -> collections.Counter[str]:
    """With the next prompt of a gateway that keeps no ids."""
    try:
        anew = stage.render(history.messages, TOOLS, None)
    except ValueError:  # the template refuses, or drops, what the policy said
        return collections.Counter(histories=1, refused=1)
    changed = history.changed_in_order(anew)
    counts = {"compared": history.tokens, "changed_anew": changed}
    return collections.Counter(histories=1, histories_changed=int(changed > 0), **counts)


def _first(stage: FamilyStage, text: str) -> list[ChatMessage]:
    system = [ChatMessage("system", "Work.")] if stage.family.has_system else []
    return [*system, ChatMessage("user", text)]


def _after(said: ChatMessage, rng: random.Random) -> Iterator[ChatMessage]:
    for call in said.tool_calls:
        yield ChatMessage("tool", rng.choice(RESULTS), answers=call.id)
    if not said.tool_calls:
        yield ChatMessage("user", rng.choice(TEXTS))


def _reply(stage: FamilyStage, rng: random.Random) -> np.ndarray:
    calls = [_call(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
    content = rng.choice(TEXTS) if rng.random() < 0.6 or not calls else ""
    text = stage.family.written(content, calls)
    if stage.family.has_thoughts and rng.random() < 0.5:
        text = f"<think>\n{rng.choice(TEXTS)}\n</think>{rng.choice(('', chr(10) * 2))}{text}"
    # Not within the name of a special token, which only the whole token is.
    places = [at for at in range(1, len(text)) if text[at].isalnum() and text[at - 1].islower()]
    split = rng.random() < SPLIT_SHARE and places
    return stage.sampled_ids(text, [rng.choice(places)] if split else ())


def _call(rng: random.Random) -> Call:
    write = WRITERS[0] if rng.random() < USUAL_SHARE else rng.choice(WRITERS)
    return "bash", write({"command": rng.choice(COMMANDS)})
