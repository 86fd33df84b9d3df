"""Fuzzes the parsers of strangers' files by coverage: atheris looks for bytes that take a branch nobody took before.

    python tests/fuzz/run.py [TARGET ...] [--seconds 60] [--keep]

Each target of targets.py runs in a process of its own, from tests/fuzz/corpus and a file as gids writes it. Bytes that
are no answer of ours are written to the corpus, where test_fuzz.py finds them from then on. ``--keep`` also writes what
reached new branches and is small, at most `KEPT_FILES` a target.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")
KEPT_FILES, KEPT_BYTES = 12, 2048
MOST_BYTES = 8192  # of a try: what is parsed are headers and documents


def seeds(name: str, place: Path) -> None:
    """Write what the search begins with: the corpus, a right file, and its document without the digest."""
    from tests.fuzz.targets import opened

    target = opened(name)
    document = target.document()
    found = [target.valid(), *([] if document is None else [json.dumps(document).encode()])]
    found += [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
    for data in found:
        (place / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def libfuzzer(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the target in a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz.instrumented", name, f"-max_len={MOST_BYTES}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)


def fuzz(name: str, seconds: int, keep: bool) -> str:
    """Fuzz one target; return what went wrong, or nothing."""
    with tempfile.TemporaryDirectory(prefix=f"gids-fuzz-{name}-") as directory:
        tried, wrong, small = (Path(directory) / part for part in ("tried", "wrong", "small"))
        for place in (tried, wrong, small):
            place.mkdir()
        seeds(name, tried)
        begun = len(list(tried.iterdir()))
        limits = (f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=4096", f"-artifact_prefix={wrong}/")
        result = libfuzzer(name, *limits, str(tried))
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        for path in wrong.iterdir():
            (CORPUS / name / f"found-{path.name[-16:]}").write_bytes(path.read_bytes())
        if result.returncode:
            return result.stdout[-2000:] + result.stderr[-4000:]
        print(f"{name}: {len(list(tried.iterdir())) - begun} ways found beyond the first {begun}", flush=True)
        if keep:
            libfuzzer(name, "-merge=1", str(small), str(tried))
            fitting = sorted(small.iterdir(), key=lambda path: (path.stat().st_size, path.name))
            for path in [path for path in fitting if path.stat().st_size <= KEPT_BYTES][:KEPT_FILES]:
                (CORPUS / name / path.name[:16]).write_bytes(path.read_bytes())
    return ""


def main() -> int:
    """Fuzz what is named, or everything; return 1 where something was no answer of ours."""
    sys.path.insert(0, str(ROOT))
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--keep", action="store_true", help="write small files that reached new branches to the corpus")
    args = parser.parse_args()
    if unknown := set(args.targets) - set(TARGETS):
        parser.error(f"TARGET must be one of {', '.join(TARGETS)} (got {', '.join(sorted(unknown))})")
    wrong = 0
    for name in args.targets or TARGETS:
        if said := fuzz(name, args.seconds, args.keep):
            wrong = 1
            print(f"{name}: not an answer of ours; what it was stands in {CORPUS.relative_to(ROOT) / name}\n{said}")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
