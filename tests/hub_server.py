"""A small server that speaks the hub's protocol: listings, files, ranges, faults."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin")
API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Repository:
    """What the server has under a name, and how it misbehaves.

    Attributes:
        files: name to content.
        gated: HTTP status and error code of every answer, as (403, "GatedRepo").
        lost: files that are listed and cannot be had.
        wrong: files whose content is not that of their hash.
        breaks: name to the number of answers that end half way.
        stalls: files of which half comes, and then nothing until the server ends.
        no_ranges: whole files are sent, whatever part is asked for.
    """

    files: dict[str, bytes]
    gated: tuple[int, str] | None = None
    lost: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    breaks: dict[str, int] = field(default_factory=dict)
    stalls: set[str] = field(default_factory=set)
    no_ranges: bool = False

    @property
    def commit(self) -> str:
        names = json.dumps([(name, hash_of(name, self.files[name])) for name in sorted(self.files)])
        return hashlib.sha1(names.encode(), usedforsecurity=False).hexdigest()


def hash_of(name: str, content: bytes) -> str:
    """A file's hash at the hub: SHA-256 of large ones, Git's of others."""
    if name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


@dataclass
class HubServer:
    """The server: its repositories, and what it was asked.

    Attributes:
        repositories: name to content.
        asked: method, path and range of every request.
        half_way: set when half of a file that stalls was sent.
    """

    repositories: dict[str, Repository]
    address: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    half_way: threading.Event = field(default_factory=threading.Event)
    ends: threading.Event = field(default_factory=threading.Event)


@contextmanager
def hub_server(repositories: dict[str, Repository]) -> Iterator[HubServer]:
    """Serve repositories on this machine, without a token."""
    state = HubServer(repositories)

    class Handler(_Handler):
        hub = state

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that leave early are what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.ends.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range", "")))
        found = API.fullmatch(path) or FILE.fullmatch(path)
        repository = self.hub.repositories.get(found[1]) if found else None
        if found is None or repository is None:
            return self._refuse(404, "RepoNotFound")
        if repository.gated is not None:
            return self._refuse(*repository.gated)
        revision = found[2] or "main"
        if revision not in ("main", "v1", repository.commit):
            return self._refuse(404, "RevisionNotFound")
        if found.re is API:
            return self._list(found[1], repository)
        name = found[3]
        if name not in repository.files or name in repository.lost:
            return self._refuse(404, "EntryNotFound")
        return self._file(repository, name, with_body=with_body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _list(self, name: str, repository: Repository) -> None:
        siblings = []
        for file, content in repository.files.items():
            about: dict[str, object] = {"rfilename": file, "size": len(content)}
            if file.endswith(LARGE):
                lfs = {"size": len(content), "sha256": hash_of(file, content), "pointerSize": 130}
                about["lfs"] = lfs
            else:
                about["blobId"] = hash_of(file, content)
            siblings.append(about)
        answer = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, repository: Repository, name: str, *, with_body: bool) -> None:
        content = repository.files[name]
        asked = RANGE.fullmatch(self.headers.get("Range", "")) if not repository.no_ranges else None
        start, stop = 0, len(content)
        if asked:
            start = int(asked[1])
            stop = min(stop, int(asked[2]) + 1) if asked[2] else stop
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hash_of(name, content)}"')
        self.send_header("X-Repo-Commit", repository.commit)
        self.end_headers()
        if with_body:
            part = content[start:stop]
            if name in repository.wrong:
                part = part[:-1] + bytes([part[-1] ^ 1])
            self._send(repository, name, part)

    def _send(self, repository: Repository, name: str, part: bytes) -> None:
        half = len(part) // 2
        if name in repository.stalls:
            repository.stalls.discard(name)
            self.wfile.write(part[:half])
            self.wfile.flush()
            self.hub.half_way.set()
            self.hub.ends.wait()
            self.close_connection = True
        elif repository.breaks.get(name, 0) > 0:
            repository.breaks[name] -= 1
            self.wfile.write(part[:half])
            self.wfile.flush()
            self.connection.shutdown(2)
            self.close_connection = True
        else:
            self.wfile.write(part)


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder as a repository has them."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
