"""The documentation site builds without a warning, and a real browser without network shows and searches it."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

from tests.browser import browse, chromium
from tests.resources import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Collects what a page refers to, and what can be referred to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if tag in ("script", "img") and "src" in found:
            self.loaded.add(found["src"])
        if tag == "link" and found.get("rel") == "stylesheet":
            self.loaded.add(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("furo", reason="docs/requirements.txt is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", out / "doctrees"]
    result = subprocess.run(
        [*command, ROOT / "docs", out / "html"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return out / "html"


def test_no_internal_link_is_dead_and_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 15
    for path, page in pages.items():
        assert not [source for source in page.loaded if urlparse(source).scheme], path
        for link in page.links | page.loaded:
            target, anchor = urldefrag(link)
            if urlparse(link).scheme or target.startswith("//"):
                continue
            found = path if not target else (path.parent / unquote(urlparse(target).path)).resolve()
            assert found.exists(), f"{path.name}: {link}"
            if anchor and found in pages:
                assert unquote(anchor) in pages[found].anchors, f"{path.name}: {link}"


def test_every_kernel_has_a_line_in_the_table_of_their_work(site: Path) -> None:
    counted = json.loads((ROOT / "tests" / "ptx" / "kernel_counts.json").read_text())["kernels"]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", (site / "kernels.html").read_text(), re.DOTALL)
    found = [[re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)] for row in rows]
    lines = {row[0].strip(): row[1:] for row in found if row}
    assert list(lines) == list(counted)
    poll = counted["nvme_poll"]
    assert lines["nvme_poll"][-1].strip() == f"{poll['host_chain']} ({poll['host_chain_alone']} alone)"


@pytest.mark.xdist_group("chromium")
@pytest.mark.parametrize("width", [1280, 500])
def test_pages_do_not_scroll_sideways(site: Path, tmp_path: Path, width: int) -> None:
    browser = chromium()
    for name in ("index", "get_started", "reference/cli", "standin", "kernels"):
        page = site / f"{name}.html"
        probe = page.with_name(f"probed-{width}-{page.name}")
        script = "<script>document.title = document.documentElement.scrollWidth + '/' + innerWidth</script></body>"
        probe.write_text(page.read_text().replace("</body>", script))
        dom = browse(browser, tmp_path / "profile", f"--window-size={width},900", "--dump-dom", probe.as_uri())
        probe.unlink()
        found = re.search(r"<title>(\d+)/(\d+)</title>", dom)
        assert found is not None, dom[:500]
        assert int(found[1]) <= int(found[2]), name


@pytest.mark.xdist_group("chromium")
def test_the_search_finds_a_word(site: Path, tmp_path: Path) -> None:
    address = (site / "search.html").as_uri() + "?q=accumulator"
    dom = browse(chromium(), tmp_path / "profile", "--virtual-time-budget=20000", "--dump-dom", address)
    found = re.search(r'<ul [^>]*class="search"[^>]*>(.*?)</ul>', dom, re.DOTALL)
    assert found is not None, dom[-2000:]
    assert "Glossary" in found[1]
