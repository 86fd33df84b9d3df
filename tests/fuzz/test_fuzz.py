"""Files of strangers, for every parser: changed bytes and changed documents give an answer or an error of ours."""

import importlib.util
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.resources import DEADLINE_S

from .run import CORPUS, ROOT
from .targets import TARGETS

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 1, 2**31, 2**62, 2**63, 2**64]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["..", "../../etc/passwd", "/etc/passwd", "", ".", "\0", "float128", "_N", "object", "O"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.fixture(scope="module", params=TARGETS)
def target(request, tmp_path_factory):
    return TARGETS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def whole(target):
    return target.valid()


def places_of(document, prefix=()):
    """Every place in a JSON document, as a tuple of keys."""
    if prefix:
        yield prefix
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from places_of(value, (*prefix, key))


SLOW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_right_file_is_read(target, whole):
    target.parse(whole)
    document = target.document()
    if document is not None:
        target.parse(target.seal(document))


@SLOW
@given(data=st.data())
def test_changed_bytes(target, whole, data):
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        kind = data.draw(st.sampled_from(["put", "insert", "remove", "cut"]))
        if kind == "put":
            changed[at : at + 4] = data.draw(st.binary(min_size=1, max_size=8))
        elif kind == "insert":
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        elif kind == "remove":
            del changed[at : at + data.draw(st.integers(1, 40))]
        else:
            del changed[at:]
    target(bytes(changed))


@SLOW
@given(data=st.data())
def test_changed_documents(target, data):
    document = target.document()
    if document is None:
        pytest.skip("this file is no document")
    for _ in range(data.draw(st.integers(1, 3))):
        places = list(places_of(document))
        if not places:
            break
        place = data.draw(st.sampled_from(places))
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        if data.draw(st.booleans()):
            parent[place[-1]] = data.draw(VALUES)
        else:
            del parent[place[-1]]
    target(target.seal(document))


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[" * 100_000, b"null", b"{}", b"9" * 10_000, b'{"format": 1e400}']
)
def test_bytes_that_are_nothing(target, data):
    target(data)


def test_what_a_search_by_coverage_found(target):
    """And whatever any of them had no answer to."""
    for path in sorted((CORPUS / target.name).glob("*")):
        target.both(path.read_bytes())


def test_every_corpus_has_a_target_and_is_small():
    files = list(CORPUS.glob("*/*"))
    assert {path.parent.name for path in files} <= TARGETS.keys()
    assert sum(path.stat().st_size for path in files) < 1 << 18


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed (make fuzz brings it)"
)
@pytest.mark.parametrize("name", TARGETS)
def test_a_search_by_coverage_finds_nothing(name):
    command = [sys.executable, str(ROOT / "tests" / "fuzz" / "run.py"), name, "--seconds", "15"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
