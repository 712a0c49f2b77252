"""The page of `draftrt serve` in a real browser: typed at, read, at the width of a phone."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import draftrt
from draftrt import DecodeOptions
from tests.e2e.test_serve import serving
from tests.waiting import until

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
BROWSER = "chromium"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("run"),
    pytest.mark.needs("chromium"),
]
QUIET = "--disable-quic --no-first-run --disable-background-networking --disable-sync"
QUIET += " --disable-component-update --disable-gpu --no-sandbox --headless=new"


class Tab:
    """A tab of a browser, by its debugging protocol over a websocket."""

    def __init__(self, address: str) -> None:
        host, _, path = address.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self._socket = socket.create_connection((name, int(port)))
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._stream = self._socket.makefile("rb")
        while self._stream.readline().strip():
            pass
        self._number = 0

    def call(self, method: str, **given: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        self._send(json.dumps({"id": self._number, "method": method, "params": given}).encode())
        while (told := json.loads(self._receive())).get("id") != self._number:
            pass
        assert "error" not in told, told
        return told["result"]

    def evaluate(self, expression: str) -> Any:
        """What an expression is on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            given = {"text": text} if text and kind == "keyDown" else {}
            code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **given
            )

    def close(self) -> None:
        """Leave."""
        self._stream.close()
        self._socket.close()

    def _send(self, content: bytes) -> None:
        mask = os.urandom(4)
        masked = bytes(one ^ mask[at % 4] for at, one in enumerate(content))
        size = len(content)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else b""
        head = head or struct.pack("!BBH", 0x81, 0x80 | 126, size)
        self._socket.sendall(head + mask + masked)

    def _receive(self) -> bytes:
        content = b""
        while True:
            first, size = self._stream.read(2)
            if size == 126:
                (size,) = struct.unpack("!H", self._stream.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._stream.read(8))
            content += self._stream.read(size)
            if first & 0x80:
                return content


@contextmanager
def opened(url: str, folder: Path, width: int, height: int) -> Iterator[Tab]:
    """A browser that shows a page."""
    command = [BROWSER, *QUIET.split(), f"--user-data-dir={folder}", "--remote-debugging-port=0"]
    command += [f"--window-size={width},{height}", url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port_file = folder / "DevToolsActivePort"
            until(lambda: port_file.is_file() and port_file.read_text().strip(), process=process)
            port = port_file.read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = [one for one in json.load(answer) if one["type"] == "page"]
            tab = Tab(tabs[0]["webSocketDebuggerUrl"])
            tab.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=width < 500,
            )
            until(lambda: tab.evaluate("typeof at") == "function")
            yield tab
            tab.close()
        finally:
            process.terminate()


@pytest.mark.parametrize(("width", "height"), [(1000, 800), (360, 740)], ids=["desk", "phone"])
def test_a_person_talks_with_the_page_by_keyboard(
    bundle: Path, tmp_path: Path, width: int, height: int
) -> None:
    text = "A song of 20 green bags:"
    with draftrt.load(bundle) as pair:
        said = pair.generate([{"role": "user", "content": text}], DecodeOptions(max_tokens=40)).text
    with (
        serving(bundle, "--max-tokens", "40") as (url, _),
        opened(f"{url}/", tmp_path, width, height) as tab,
    ):
        until(lambda: tab.evaluate("at('model').textContent") == bundle.name)
        assert tab.evaluate("document.activeElement.id") == "text"  # nothing to click first
        tab.call("Input.insertText", text=text)
        tab.press("Enter", "\r")
        answer = "document.querySelector('article.assistant')?.textContent"
        until(lambda: tab.evaluate(answer) == said)
        until(lambda: tab.evaluate("document.querySelectorAll('article.figures').length") == 1)
        kept = tab.evaluate(
            "document.querySelectorAll('.assistant .kept, .assistant .copied').length"
        )
        assert kept > 0
        assert tab.evaluate("document.querySelectorAll('#plot rect').length") > 2
        assert "with drafter" in tab.evaluate("at('rates').textContent")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        picture = tab.call("Page.captureScreenshot", format="png")["data"]
        (tmp_path / "page.png").write_bytes(base64.b64decode(picture))
        tab.evaluate("at('plain').click(); at('text').focus()")
        tab.call("Input.insertText", text="and now?")
        tab.press("Enter", "\r")
        until(lambda: tab.evaluate("document.querySelectorAll('article.figures').length") == 2)
        assert "without" in tab.evaluate("at('rates').textContent")
        assert tab.evaluate("messages.length") == 4
        tab.evaluate("at('reset').click()")
        assert tab.evaluate("document.querySelectorAll('article').length + messages.length") == 0
