"""Manifests of strangers: whatever the file holds, the answer is a dataset or a DatasetError, never another exception."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gids
from gids.cli import main
from gids.dataset import manifest as manifests
from gids.dataset.in_place import npy_header
from gids.errors import DatasetError
from gids.generate import communities


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("dataset") / "d"
    communities(path, num_nodes=60, degree=4, dim=5, train=0.5)
    return path


@pytest.fixture
def dataset(original, tmp_path):
    """A copy whose manifest a test may change."""
    shutil.copytree(original, tmp_path / "d")
    return tmp_path / "d"


def sealed(document):
    """The text of a manifest with the digest that it should have: a stranger can compute it too."""
    document = {key: value for key, value in document.items() if key != "digest"}
    return json.dumps({"digest": manifests._digest(document), **document})


def change(path, edit):
    """Change a manifest, and seal it again."""
    file = path / manifests.MANIFEST
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(sealed(document))


def feat(document):
    return document["nodes"]["_N"]["features"]["feat"]


def stripe(document):
    return feat(document)["stripes"][0]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d: feat(d)["checksums"].update(chunk_rows=0), r"chunk_rows must be a whole number in \[1, "),
        (lambda d: stripe(d).update(data_offset=-8), r"data_offset must be a whole number in \[0, .*got -8"),
        (lambda d: stripe(d).update(file_bytes="many"), "file_bytes must be a whole number"),
        (lambda d: stripe(d).update(path=7), "path must be text"),
        (lambda d: stripe(d).update(path="a\0b"), "path must be text"),
        (lambda d: feat(d).update(num_rows=True), "num_rows must be a whole number"),
        (lambda d: feat(d).update(num_rows=60.0), "num_rows must be a whole number"),
        (lambda d: feat(d).update(stripe_rows=0), r"stripe_rows must be a whole number in \[1, "),
        (lambda d: feat(d).update(row_stride=2**61), r"must end before byte 2\*\*62"),
        (lambda d: feat(d).update(dim=2**70), r"dim must be a whole number in \[1, 2\*\*62\)"),
        (lambda d: feat(d).update(dtype=["float32"]), "dtype must be text"),
        (lambda d: feat(d).update(stripes=[]), "needs at least one stripe"),
        (lambda d: feat(d).update(stripes=None), "is damaged: TypeError"),
        (lambda d: d["nodes"]["_N"]["features"].clear(), "not those that its id names"),
        (lambda d: d["nodes"]["_N"]["splits"].pop("train"), "not those that its id names"),
        (lambda d: d["nodes"]["_N"].update(labels=None), "not those that its id names"),
        (lambda d: d["nodes"]["_N"].update(num_classes="two"), "num_classes must be a whole number"),
        (lambda d: d.update(edges=d["edges"] * 2), "must be stored once"),
        (lambda d: d["edges"][0].update(type=["_N", ["_E"], "_N"]), "must be three words"),
        (lambda d: d.update(attributes=[1]), "attributes must be a JSON object"),
        (lambda d: d.update(nodes=None), "is damaged"),
        (lambda d: d.pop("id"), "is damaged: KeyError"),
    ],
)
def test_each_is_refused_with_its_reason_and_verify_says_so(dataset, edit, said, capsys):
    change(dataset, edit)
    with pytest.raises(DatasetError, match=said):
        gids.open(dataset)
    assert main(["verify", str(dataset)]) == 1
    assert str(dataset) in capsys.readouterr().err


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\xfd",
        '{"format": "gids-dataset"}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"format": "gids-dataset", "version": 1e400}',
        b'{"format": "gids-dataset", "version": ' + b"9" * 10_000 + b"}",
        b"null",
        b'"gids-dataset"',
    ],
)
def test_bytes_that_are_no_manifest(dataset, data):
    (dataset / manifests.MANIFEST).write_bytes(data)
    with pytest.raises(DatasetError):
        gids.open(dataset)


def paths_of(document, prefix=()):
    """Every place in a JSON document, as a tuple of keys."""
    yield prefix
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from paths_of(value, (*prefix, key))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 1, 2**31, 2**62, 2**63, 2**64]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["..", "../../etc/passwd", "/etc/passwd", "", ".", "\0", "float128", "_N"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_gives_a_dataset_or_a_dataset_error(original, data):
    document = json.loads((original / manifests.MANIFEST).read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([path for path in paths_of(document) if path]))
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        if data.draw(st.booleans()):
            parent[place[-1]] = data.draw(VALUES)
        else:
            del parent[place[-1]]
    try:
        parsed = manifests.parse(sealed(document), original)
    except DatasetError:
        return
    for stored in parsed.tables():
        for part in stored.table.stripes:
            assert part.data_offset >= 0
            assert part.path.is_relative_to(original) or any(
                part.path.is_relative_to(place) for place in document["outside"]
            )


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../secret", "nodes/../../secret", "..", "./../d2/x"], ids=lambda name: name
)
def test_a_path_cannot_leave_the_directory(dataset, name):
    (dataset.parent / "secret").write_bytes(bytes(60 * 20))
    change(dataset, lambda d: stripe(d).update(path=name))
    with pytest.raises(DatasetError, match="must lie in the dataset's directory"):
        gids.open(dataset)
    change(dataset, lambda d: (stripe(d).update(path="elsewhere.bin"), feat(d)["checksums"].update(path=name)))
    with pytest.raises(DatasetError, match="must lie in the dataset's directory"):
        gids.open(dataset)


def test_what_was_put_outside_at_conversion_is_found(tmp_path):
    values = np.random.default_rng(0).random((40, 3), np.float32)
    np.save(tmp_path / "features.npy", values)
    (tmp_path / "disk").mkdir()
    with gids.DatasetWriter(tmp_path / "d", stripe_dirs=[tmp_path / "disk"]) as writer:
        writer.add_nodes(40)
        writer.add_features(torch.from_numpy(values), name="striped")
        writer.reference_features(npy_header(tmp_path / "features.npy"), name="in place")
        writer.add_csc([0] * 41, [])
    outside = json.loads((tmp_path / "d" / manifests.MANIFEST).read_text())["outside"]
    assert str(tmp_path) in outside
    assert any(Path(place).is_relative_to(tmp_path / "disk") for place in outside)
    assert gids.open(tmp_path / "d").feature_names() == ["in place", "striped"]
    change(tmp_path / "d", lambda d: d.pop("outside"))
    with pytest.raises(DatasetError, match="allowed: none"):
        gids.open(tmp_path / "d")
    change(tmp_path / "d", lambda d: d.update(outside=["relative"]))
    with pytest.raises(DatasetError, match="list of absolute directories"):
        gids.open(tmp_path / "d")
