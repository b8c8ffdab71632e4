"""A small hub: the part of the Hugging Face hub's API that huggingface_hub needs to fetch a model,
with a folder behind it."""

import contextlib
import dataclasses
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "hf_of_somebody"
_INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/?]+)")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/?]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclasses.dataclass
class Model:
    """revisions: the commit of each branch and tag. access: "free", "private" or "gated". fails:
    what is answered with an error."""

    folder: Path
    revisions: dict
    access: str = "free"
    fails: str = ""


class Hub:
    """fetched: the paths of all files that were sent."""

    def __init__(self, url, models):
        self.url, self.models, self.fetched = url, models, []


@contextlib.contextmanager
def served_hub(**models):
    """Yields a hub with these models, of an organization called org."""
    hub = Hub("", {f"org/{name}": model for name, model in models.items()})
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def _answer(self):
        for pattern, answer in ((_INFO, self._info), (_TREE, self._tree), (_FILE, self._file)):
            if found := pattern.match(self.path):
                name, revision, *path = found.groups()
                if refused := self._refusal(name, revision):
                    self._send(*refused)
                else:
                    model = self.hub.models[name]
                    answer(model, model.revisions.get(revision, revision), *path)
                return
        self._send(404)

    def _refusal(self, name, revision):
        """Status and code of an error; None if the user may have what they ask for."""
        model = self.hub.models.get(name)
        knows = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if model is None or (model.access == "private" and not knows):
            return 401, "RepoNotFound"
        if model.fails and model.fails in self.path:
            return 400, ""
        if revision not in {*model.revisions, *model.revisions.values()}:
            return 404, "RevisionNotFound"
        if model.access == "gated" and not knows and _FILE.match(self.path):
            return 403, "GatedRepo"
        return None

    def _info(self, model, commit):
        files = [{"rfilename": path} for path in _files(model.folder)]
        self._send(200, content=json.dumps({"id": "org/model", "sha": commit, "siblings": files}))

    def _tree(self, model, commit):
        entries = [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in _files(model.folder).items()
        ]
        self._send(200, content=json.dumps(entries))

    def _file(self, model, commit, path):
        data = _files(model.folder).get(path)
        if data is None:
            return self._send(404, "EntryNotFound")
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit}
        if self.command == "GET":
            self.hub.fetched.append(path)
        return self._send(200, content=data, **headers)

    def _send(self, status, code="", content=b"", **headers):
        content = content if isinstance(content, bytes) else content.encode()
        self.send_response(status)
        for name, value in {"X-Error-Code": code, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _files(folder):
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
