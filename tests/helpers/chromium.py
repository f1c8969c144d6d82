"""A headless Chromium, driven through the DevTools protocol over a pair of pipes; no package
needed.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)


class Page:
    """One open page."""

    def __init__(self, to: int, back: Any) -> None:
        self._to, self._back, self._number = to, back, 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that come meanwhile are kept in `events`."""
        self._number += 1
        message: dict[str, Any] = {
            "id": self._number,
            "method": method,
            "params": parameters,
        }
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium ended")
            data += byte
        answer: dict[str, Any] = json.loads(data)
        return answer

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        """Load a file and wait until its timeline, if it has one, is drawn."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send(
            "Emulation.setEmulatedMedia",
            features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}],
        )
        self.events.clear()
        self.send("Page.navigate", url=path.absolute().as_uri())
        while not any(
            event.get("method") == "Page.loadEventFired" for event in self.events
        ):
            self.events.append(self._next())
        ready = "new Promise(done => { const see = () => !document.getElementById('timeline') || " \
                "document.querySelector('#timeline.ready') ? requestAnimationFrame(() => done(1)) : setTimeout(see, 5); see(); })"  # fmt: skip # noqa: E501
        self.run(ready)

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(
                found["exceptionDetails"]["exception"].get(
                    "description", "script failed"
                )
            )
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """One key, as typed."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.frame()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """``mouseMoved``, ``mousePressed``, ``mouseReleased`` or ``mouseWheel`` at a place of the
        window.
        """
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)
        self.frame()

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """The window, or the whole page, as PNG."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser() -> Iterator[Page]:
    """A browser with one empty page; it ends with the block."""
    assert CHROMIUM is not None
    commands, answers = os.pipe(), os.pipe()
    with TemporaryDirectory() as profile:
        script = f'exec 3<&{commands[0]} 4>&{answers[1]}; exec "$0" "$@"'
        options = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        )
        process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *options, "about:blank"],
            pass_fds=(commands[0], answers[1]), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands[0])
        os.close(answers[1])
        with os.fdopen(answers[0], "rb") as back:
            try:
                page = Page(commands[1], back)
                yield page
                page._session = ""
                page.send("Browser.close")
            finally:
                os.close(commands[1])
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
