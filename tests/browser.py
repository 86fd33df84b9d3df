"""A headless browser without network, for tests that look at pages."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.resources import DEADLINE_S

ROOT = Path(__file__).resolve().parents[1]


def chromium() -> str:
    """Return the browser's path; skip where there is none and none can be installed."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        subprocess.run([ROOT / ".ci" / "packages", "chromium"], check=False, timeout=DEADLINE_S)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("NOT CHECKED IN A BROWSER: chromium is not installed and could not be installed here")
    return found


def browse(browser: str, profile: Path, *options: str) -> str:
    """Open a page and return what the browser prints; any attempt to reach a host fails: the page has to do without."""
    command = [
        browser,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]
    command += [f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout
