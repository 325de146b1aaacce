"""A small stand-in for the Hugging Face Hub, over real HTTP, on this machine."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """Repositories by name: their files by name. Tokens that came with requests are noted."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.tokens: set[str | None] = set()
        self.address = ""


@contextlib.contextmanager
def serving(hub: Hub):
    """Serve a hub at `hub.address` for the length of a block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        self.hub.tokens.add(self.headers["authorization"])
        repositories = self.hub.repositories
        if self.path.startswith("/api/repos/create"):
            made = json.loads(body)
            name = f"{made['organization']}/{made['name']}"
            repositories.setdefault(name, {})
            self._answer({"url": f"{self.hub.address}/{name}"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            self._answer(
                {"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in files]}
            )
        elif found := re.match(r"/api/models/([^/]+/[^/]+)/commit/", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    repositories[found[1]][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"{self.hub.address}/{found[1]}/commit/{COMMIT}"
            self._answer({"commitUrl": address, "commitOid": COMMIT, "success": True})
        else:
            self._answer({})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.match(r"/api/models/([^/]+/[^/]+)(?:/revision/.*)?$", path):
            files = self.hub.repositories.get(found[1])
            if files is None:
                self._answer({"error": "Repository not found"}, 404, {"x-error-code": "RepoNotFound"})
                return
            siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
            self._answer({"id": found[1], "sha": COMMIT, "siblings": siblings})
        elif found := re.match(r"/([^/]+/[^/]+)/resolve/[^/]+/(.*)$", path):
            data = self.hub.repositories[found[1]][found[2]]
            headers = {"etag": f'"{hashlib.sha1(data).hexdigest()}"', "x-repo-commit": COMMIT}
            self._send(data, 200, headers)
        else:
            self._answer({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(
            json.dumps(value).encode(), status, {"content-type": "application/json", **(headers or {})}
        )

    def _send(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
