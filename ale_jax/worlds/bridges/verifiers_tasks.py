"""The tasksets of verifiers, as they are answered for in a process of their own (player.py).

The library plays: its environment, its chat loop, its servers of tools. Only the model that they
call is here, at an address of this process, and waits for what the policy replies. It imports
nothing of ours.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import queue
import sys
import tempfile
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HARNESS = "ale_chat"  # as the library calls the module of its chat loop
PLAY_S = 100.0  # until the library has to ask, or to end


class VerifiersLibrary:
    """One episode at a time."""

    def __init__(self) -> None:
        os.environ["HOME"] = tempfile.gettempdir()  # in which the library keeps what it makes
        import verifiers.v1 as vf
        from verifiers.v1.utils import loaders

        logging.disable(logging.ERROR)
        sys.modules[HARNESS] = _harness()
        self._vf, self._loaders = vf, loaders
        self._environment = functools.cache(self._opened)
        self._tools = functools.cache(self._offered)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._calls: _Calls = _Calls()

    def items(self, folder: str, taskset: str) -> list[list[str]]:
        """Of each task, its position, its prompt, and its key."""
        environment, tasks = self._environment(folder, taskset)
        if type(environment.taskset).INFINITE:
            raise ValueError(f"{taskset} has tasks without end, which cannot be listed")
        if any(task.NEEDS_CONTAINER or task.data.image for task in tasks):
            raise ValueError(f"tasks of {taskset} need a container")
        return [[str(task.data.idx), task.data.prompt_text, task.key] for task in tasks]

    def tools(self, folder: str, taskset: str) -> list[Any]:
        """What the first task offers, as its class says it for all."""
        return list(self._tools(folder, taskset))

    def begin(self, folder: str, taskset: str, number: int) -> dict[str, Any]:
        """Begins an episode; returns what the model is asked first: new `messages`."""
        self._calls.give_up()
        self._calls = self._server.calls = _Calls()  # type: ignore[attr-defined]
        environment, tasks = self._environment(folder, taskset)
        playing = self._played(environment, tasks[number])
        self._calls.playing = asyncio.run_coroutine_threadsafe(playing, self._loop)
        self._calls.playing.add_done_callback(self._calls.ended)
        return self._calls.next()

    def answer(self, content: str, calls: list[list[Any]]) -> dict[str, Any]:
        """Gives the model's reply; returns what it is asked next, or how the episode has ended:
        `rewards`, with their weights, `metrics` and `error`."""
        self._calls.answer(_message(content, calls))
        return self._calls.next()

    async def _played(self, environment: Any, task: Any) -> dict[str, Any]:
        vf, port = self._vf, self._server.server_address[1]
        client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var="PATH")
        async with environment.serving():
            context = vf.ModelContext(model="policy", client=client)
            episode = await environment.run_episode(task, context)
        traces = [trace for trace in episode.traces if trace.agent.trainable]
        errors = [error for each in (episode, *traces) for error in each.errors]
        if len(traces) != 1:
            raise ValueError(f"{len(traces)} agents have played, and one can be trained")
        (trace,) = traces
        return {
            "rewards": {name: each.value for name, each in trace.rewards.items() if each},
            "metrics": {name: value for name, value in trace.metrics.items() if value is not None},
            "error": "" if episode.ok else f"{errors[-1].type}: {errors[-1].message}",
        }

    def _opened(self, folder: str, taskset: str) -> tuple[Any, list[Any]]:
        if folder not in sys.path:
            sys.path.append(folder)
        os.environ["PYTHONPATH"] = folder  # of the servers of tools
        agent = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
        given = {"taskset": {"id": taskset}, "agent": agent}
        environment = self._loaders.load_environment(self._loaders.resolve_env_config(given))
        finite = not type(environment.taskset).INFINITE
        return environment, list(environment.taskset) if finite else []

    def _offered(self, folder: str, taskset: str) -> list[Any]:
        told = self.begin(folder, taskset, 0)
        self._calls.give_up()
        if "messages" not in told:
            raise ValueError(f"{taskset} asks for nothing: {told['error']}")
        return self._calls.tools


class _Calls:
    """The calls of an episode to the model: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.playing: Future[Any] | None = None
        self.tools: list[Any] = []
        self._told = 0  # messages of the conversation that the policy has read or written
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def ask(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Waits for the policy's answer; None if the episode is given up."""
        self._events.put(body)
        return self._answers.get()

    def ended(self, playing: Future[Any]) -> None:
        if playing.cancelled():
            return
        if error := playing.exception():
            self._events.put({"error": f"{type(error).__name__}: {error}"})
        else:
            self._events.put(playing.result())

    def next(self) -> dict[str, Any]:
        try:
            event = self._events.get(timeout=PLAY_S)
        except queue.Empty:
            raise TimeoutError("the library neither asks nor ends") from None
        if "messages" not in event:
            return event
        self.tools = event.get("tools") or []
        new, self._told = event["messages"][self._told :], len(event["messages"])
        return {"messages": [[each["role"], _text(each["content"])] for each in new]}

    def answer(self, message: dict[str, Any]) -> None:
        self._told += 1
        self._answers.put(message)

    def give_up(self) -> None:
        """Ends the episode, if it goes on."""
        if self.playing is not None:
            self._answers.put(None)
            self.playing.cancel()


class _Handler(BaseHTTPRequestHandler):
    """The model, as the library calls it: OpenAI's chat completions, streamed or not."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = self.server.calls.ask(body)  # type: ignore[attr-defined]
        if message is None:
            self.send_error(410)
            return
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        head = {"id": "reply", "created": 0, "model": "policy", "usage": usage}
        choice = {"index": 0, "finish_reason": finish}
        if body.get("stream"):
            chunk = {"object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
            told = f"data: {json.dumps(head | chunk)}\n\ndata: [DONE]\n\n"
            self._send(told, "text/event-stream")
        else:
            whole = {"object": "chat.completion", "choices": [{**choice, "message": message}]}
            self._send(json.dumps(head | whole), "application/json")

    def log_message(self, *args: Any) -> None:
        """Says nothing."""

    def _send(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def _harness() -> ModuleType:
    """The module of the library's own chat loop, which is run by this interpreter: uv would fetch
    what it imports."""
    from verifiers.v1.harnesses.null.harness import NullHarness

    class Chat(NullHarness):  # type: ignore[misc]
        async def setup(self, runtime: Any) -> None:
            """Has nothing to install."""

        async def launch(self, ctx: Any, trace: Any, runtime: Any, *more: Any, **named: Any) -> Any:
            async def prepared(source: str, *_: Any, **__: Any) -> list[str]:
                path = f"{runtime.scripts_dir}/chat.py"
                await runtime.write(path, source.encode())
                return [sys.executable, "-P", path]

            runtime.prepare_uv_script = prepared
            return await super().launch(ctx, trace, runtime, *more, **named)

    module = ModuleType(HARNESS)
    module.__spec__ = ModuleSpec(HARNESS, None)
    module.__all__ = ["Chat"]  # type: ignore[attr-defined]
    module.Chat = Chat  # type: ignore[attr-defined]
    return module


def _message(content: str, calls: list[list[Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        told["tool_calls"] = [
            {
                "index": number,
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ]
    return told


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part.get("text", "") for part in content)
