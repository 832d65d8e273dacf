"""Headless Chromium for pages of a report: no network, and what goes wrong is kept.

Needs playwright (pip install playwright) and Chromium: the system's, or that of
`playwright install chromium`.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass
class Browser:
    """Opens pages; `faults` collects errors, console messages and requests that leave the files."""

    chromium: Any
    faults: list[str]

    @contextlib.contextmanager
    def page(
        self, width: int = 1280, height: int = 800, *, dark: bool = False, scale: float = 1.0
    ) -> Iterator[Any]:
        """A new page (playwright's) in a profile of its own, offline.

        Args:
          width, height: of the window, in CSS pixels.
          dark: what the system is said to prefer.
          scale: device pixels for each of them.
        """
        context = self.chromium.new_context(
            viewport={"width": width, "height": height}, offline=True, reduced_motion="reduce",
            color_scheme="dark" if dark else "light", device_scale_factor=scale)
        page = context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", lambda message: self.faults.append(f"console: {message.text}"))
        page.on("dialog", self._dismiss)
        page.on("request", self._check)
        try:
            yield page
        finally:
            context.close()

    def _dismiss(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _check(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.faults.append(f"request: {request.url}")


@contextlib.contextmanager
def launch() -> Iterator[Browser]:
    """Starts Chromium.

    Raises:
      RuntimeError: playwright or Chromium is not there.
    """
    try:
        from playwright import sync_api
    except ImportError:
        raise RuntimeError("playwright is not installed: pip install playwright") from None
    with sync_api.sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        if found is None and not pathlib.Path(playwright.chromium.executable_path).exists():
            raise RuntimeError("there is no Chromium: install the system's (apt-get install "
                               "chromium) or run `playwright install chromium`")
        # Chromium's own sandbox cannot start as root, as in containers.
        chromium = playwright.chromium.launch(
            executable_path=found, chromium_sandbox=os.geteuid() != 0)
        try:
            yield Browser(chromium, [])
        finally:
            chromium.close()
