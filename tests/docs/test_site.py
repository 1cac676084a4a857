# SPDX-License-Identifier: Apache-2.0
"""The site is built without a warning, has no broken link or picture, and can be read, on a phone too."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import pulptrain
from pulptrain.inputs import layers
from shared.paths import ROOT

DOCS = ROOT / "docs"

pytestmark = pytest.mark.needs_sphinx


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    command += ["-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


class Seen(HTMLParser):
    """Links, pictures and anchors of a page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.without_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[key] or "" for key in ("id", "name") if given.get(key)}
        self.links += [given[key] or "" for key in ("href", "src") if given.get(key)]
        if tag == "img" and not given.get("alt"):
            self.without_text.append(given.get("src") or "")


def pages(site: Path) -> dict[Path, Seen]:
    return {path: Seen(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


@pytest.mark.slow
def test_every_link_picture_and_anchor_of_the_site_is_there(site: Path) -> None:
    found = pages(site)
    broken = []
    for page, seen in found.items():
        for link in seen.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            file, anchor = urldefrag(unquote(link))
            target = (page.parent / file.partition("?")[0]).resolve() if file else page
            there = target.is_file() and (
                not anchor or target not in found or anchor in found[target].anchors
            )
            if not there and not anchor.startswith("/"):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []
    assert len(found) > 40
    assert not [src for seen in found.values() for src in seen.without_text if "notebooks" not in src]


@pytest.mark.slow
def test_every_page_is_on_the_site_and_in_its_menu(site: Path) -> None:
    menu = (site / "index.html").read_text(encoding="utf-8")
    for path in [*DOCS.glob("*.md"), *DOCS.glob("notebooks/*.ipynb")]:
        page = path.relative_to(DOCS).with_suffix(".html")
        assert (site / page).is_file(), page
        assert page.name == "index.html" or f'href="{page.as_posix()}"' in menu, page


def test_every_name_of_the_python_api_is_on_its_page() -> None:
    page = (DOCS / "python-api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"pulptrain\.(\w+)", page)) | set(re.findall(r"^\| `(\w+)\(", page, re.MULTILINE))
    bases = {"Layer", "Loss", "Optimizer"}
    assert {*pulptrain.NAMES, *layers.__all__} - bases <= named


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    program = next(found for found in map(shutil.which, names) if found)
    with sync_playwright() as player:
        opened = player.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


LOOK = """() => ({
  small: [...document.querySelectorAll('article p')].filter(
    p => parseFloat(getComputedStyle(p).fontSize) < 12).length,
  wide: document.documentElement.scrollWidth - window.innerWidth,
  broken: [...document.images].filter(i => !(i.complete && i.naturalWidth > 0)).map(i => i.src),
  heading: document.querySelectorAll('article h1').length,
})"""


@pytest.mark.slow
@pytest.mark.needs_chromium
@pytest.mark.needs_playwright
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_every_page_can_be_read_in_a_browser(
    site: Path, address: str, browser: Any, width: int, height: int
) -> None:
    """No failed request, no error of a script, no broken picture; and the page does not scroll sideways."""
    page = browser.new_page(viewport={"width": width, "height": height})
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
    page.on("pageerror", lambda error: failed.append(str(error)))
    wrong = {}
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        if name.split("/")[0] in ("_static", "_sources") or name in ("genindex.html", "search.html"):
            continue
        page.goto(f"{address}/{name}", wait_until="load")
        page.evaluate("for (const i of document.images) i.loading = 'eager'")
        page.wait_for_function("[...document.images].every(i => i.complete)")
        seen = page.evaluate(LOOK)
        if seen["wide"] > 0 or seen["broken"] or seen["small"] or seen["heading"] != 1:
            wrong[name] = seen
    page.close()
    assert wrong == {}
    assert failed == []
