"""An endpoint of OpenAI's API, over HTTP, whose policy is a function of the messages."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def endpoint(answer: Callable[[dict], tuple[int, dict] | str]) -> Iterator[tuple[str, list[dict]]]:
    """Yields the URL, and the bodies of the requests so far. answer: of a body, what the policy
    says, or status and body of an answer; its tokens are its words."""
    asked: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sent = {"path": self.path, "authorization": self.headers.get("Authorization")}
            asked.append(body | sent)
            told = answer(body)
            status, told = (200, _completion(told)) if isinstance(told, str) else told
            content = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(text):
    message = {"role": "assistant", "content": text}
    return {
        "choices": [{"message": message, "finish_reason": "stop"}],
        "usage": {"completion_tokens": len(text.split())},
    }
