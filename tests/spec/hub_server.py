"""A server that answers like the Hugging Face Hub, for files in a directory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "hf_let_me_in"


@dataclass
class Hub:
    """What a test sets up, and what the server saw.

    Repositories whose name starts with ``private``, ``gated``, ``moved``, ``whole``, ``garbage``,
    ``broken`` or ``slow`` behave so; ``private`` and ``gated`` ones open to ``TOKEN``.
    """

    root: Path
    url: str = ""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def refuse(self, status: int, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        token = self.headers.get("Authorization")
        self.hub.asked.append((self.headers["Host"].split(":")[0], self.path, token))
        parts = self.path.lstrip("/").split("/")
        if parts[0] == "moved-here":
            self.send_file(Path(*parts[1:]))
            return
        owner, name, _, revision, *rest = parts
        repository, file = f"{owner}/{name}", "/".join(rest)
        if not (self.hub.root / repository).is_dir():
            self.refuse(404 if token else 401, "RepoNotFound")
        elif name.startswith("private") and token != f"Bearer {TOKEN}":
            self.refuse(401, "RepoNotFound")
        elif name.startswith("gated") and token != f"Bearer {TOKEN}":
            self.refuse(403 if token else 401, "GatedRepo")
        elif revision not in ("main", "v2"):
            self.refuse(404, "RevisionNotFound")
        elif not (self.hub.root / repository / file).is_file():
            self.refuse(404, "EntryNotFound")
        elif name.startswith("moved"):
            self.send_response(302)
            port = self.hub.url.rsplit(":", 1)[1]
            self.send_header("Location", f"http://localhost:{port}/moved-here/{repository}/{file}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif name.startswith("slow"):
            self.hub.release.wait(30)
            self.close_connection = True
        elif name.startswith("broken"):
            self.refuse(503)
        elif name.startswith("garbage"):
            self.wfile.write(b"this is not HTTP\r\n\r\n")
            self.close_connection = True
        else:
            self.send_file(Path(repository, file), whole=name.startswith("whole"))

    def send_file(self, path: Path, whole: bool = False) -> None:
        data = (self.hub.root / path).read_bytes()
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        start, stop = int(first), min(int(last) + 1, len(data))
        if whole:
            start, stop = 0, len(data)
        self.hub.ranges.append((path.name, start, stop))
        if start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200 if whole else 206)
        if not whole:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        try:
            self.wfile.write(data[start:stop])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


@contextmanager
def serve(root: Path) -> Iterator[Hub]:
    """Run the server on a port of this machine until the block ends."""
    hub = Hub(root)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield hub
        finally:
            hub.release.set()
            server.shutdown()
            thread.join()
