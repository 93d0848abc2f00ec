# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through its DevTools protocol over two pipes: nothing to install but the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any


def find() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. Events that came are kept until they are asked for."""

    def __init__(self, program: str, seconds: float = 30) -> None:
        self._limit = seconds
        self._last = 0
        self._pending = b""
        self._events: list[dict[str, Any]] = []
        self._profile = tempfile.mkdtemp(prefix="gpurx-browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads from descriptor 3 and writes to 4. As root, or in a container, it can have no sandbox.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{to_browser} 4>&{from_browser}',
                "bash",
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--no-first-run",
                "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                "--allow-file-access-from-files",
                f"--user-data-dir={self._profile}",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._in], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {self._limit} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise ConnectionError("the browser has ended")
            self._pending += data
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)

    def _send(self, method: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
        self._last += 1
        data = json.dumps({"id": self._last, "method": method, "params": parameters, **more}).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        until = time.monotonic() + self._limit
        while True:
            message = self._receive(until)
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            if "method" in message:
                self._events.append(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._send(method, parameters, sessionId=self._session)

    def size(self, width: int, height: int, phone: bool) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def theme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def go(self, url: str) -> None:
        """Returns when the page has loaded."""
        self._events.clear()
        self.call("Page.navigate", url=url)
        until = time.monotonic() + self._limit
        while not any(one["method"] == "Page.loadEventFired" for one in self._events):
            message = self._receive(until)
            if "method" in message:
                self._events.append(message)

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']['text']}")
        return result["result"].get("value")

    def errors(self) -> list[str]:
        """What the console has, and exceptions, since go()."""
        found = []
        for one in self._events:
            about = one["params"]
            if one["method"] == "Runtime.exceptionThrown":
                found.append(
                    about["exceptionDetails"].get("exception", {}).get("description")
                    or about["exceptionDetails"]["text"]
                )
            elif one["method"] == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(" ".join(str(each.get("value", each.get("description"))) for each in about["args"]))
            elif one["method"] == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        return found

    def requests(self) -> list[str]:
        """What has been asked for since go()."""
        return [one["params"]["request"]["url"] for one in self._events if one["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
