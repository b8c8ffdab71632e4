"""Plays a task of verifiers without ALE-JAX, in its own Python: TASKSET POSITION REPLIES

REPLIES are messages of the assistant as JSON. Prints, as JSON, the roles and texts that the model
was shown in all, and the library's rewards and metrics. Only uv is left out, which would fetch what
the chat loop imports.
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import verifiers.v1 as vf
from verifiers.v1.runtimes.subprocess import SubprocessRuntime
from verifiers.v1.utils import loaders

TASKSET, POSITION, REPLIES = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
SHOWN = []


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        SHOWN[:] = [[each["role"], each["content"] or ""] for each in asked["messages"]]
        reply = REPLIES.pop(0)
        finish = "tool_calls" if reply.get("tool_calls") else "stop"
        choice = {"index": 0, "delta": reply, "finish_reason": finish}
        head = {"id": "a", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = json.dumps(head | {"choices": [choice], "usage": usage})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"data: {told}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *args):
        pass


async def without_uv(self, script, *args, **more):
    await self.write("chat.py", script.encode())
    return [sys.executable, "chat.py"]


async def main():
    SubprocessRuntime.prepare_uv_script = without_uv
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    config = loaders.resolve_env_config({"taskset": {"id": TASKSET}, "agent": agent})
    env, url = loaders.load_environment(config), f"http://127.0.0.1:{server.server_port}/v1"
    client = vf.EvalClientConfig(base_url=url, api_key_var="PATH")
    async with env.serving():
        task = list(env.taskset)[POSITION]
        episode = await env.run_episode(task, vf.ModelContext(model="m", client=client))
    (trace,) = episode.traces
    rewards = {name: each.value for name, each in trace.rewards.items()}
    print(json.dumps({"shown": SHOWN, "rewards": rewards, "metrics": trace.metrics}))


asyncio.run(main())
