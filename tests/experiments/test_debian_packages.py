"""The Debian package graph: a small index with literal results, and the machine's own index as a dataset."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gids
from experiments import debian_packages as deb

INDEX = """\
Package: alpha
Section: utils
Depends: beta (>= 1.0), gamma:any | delta [amd64]
Recommends: mail-agent
Description: finds and sorts files

Package: beta
Section: contrib/libs
Pre-Depends: alpha
Depends: alpha, missing
Suggests: alpha,
 gamma
Description: library that sorts

Package: gamma
Section: libs
Provides: mail-agent (= 1)
Description: mail agent

Package: alpha
Section: oldlibs
Description: a second stanza of a name does not count
"""


def test_parse():
    alpha, beta, gamma = deb.parse_index(INDEX)
    assert alpha.relations == {"depends": ("beta", "gamma", "delta"), "recommends": ("mail-agent",), "suggests": ()}
    assert beta.section == "libs"
    assert beta.relations["depends"] == ("alpha", "missing")
    assert beta.relations["suggests"] == ("alpha", "gamma")
    assert gamma.provides == ("mail-agent",)


def test_edges_resolve_virtual_packages_and_drop_unknown_ones():
    edges = deb.edges(deb.parse_index(INDEX))
    assert edges["depends"].tolist() == [[0, 0, 1], [1, 2, 0]]
    assert edges["recommends"].tolist() == [[0], [2]]
    assert edges["suggests"].tolist() == [[1, 1], [0, 2]]


def test_labels_and_features():
    packages = deb.parse_index(INDEX)
    classes, sections = deb.labels(packages)
    assert sections == ["libs", "utils"]
    assert classes.tolist() == [1, 0, 0]
    rows = deb.features(packages, dim=64)
    assert rows.dtype == np.float16
    assert np.allclose(np.linalg.norm(rows.astype(np.float32), axis=1), 1, atol=1e-2)


def test_dataset_keeps_both_directions(tmp_path):
    dataset = deb.write_dataset(deb.parse_index(INDEX), tmp_path / "deb")
    assert gids.open(tmp_path / "deb").id == dataset.id
    assert dataset.indptr(("package", "depends", "package")).tolist() == [0, 2, 3, 3]
    assert dataset.indptr(("package", "depends_of", "package")).tolist() == [0, 1, 2, 3]


def test_this_machine_has_packages():
    try:
        packages = deb.parse_index(deb.read_index())
    except FileNotFoundError:
        pytest.skip("not a Debian machine")
    assert len(packages) > 100
    assert deb.edges(packages)["depends"].shape[1] > len(packages)


def test_features_are_the_same_in_every_process():
    """Words that share a column are added in one order, whatever order this process's sets have."""
    words = " ".join(f"{a}{b}word" for a in "abcdefgh" for b in "klmnopqr")
    code = (
        "from experiments import debian_packages as deb; import hashlib; "
        f"packages = [deb.Package(str(i), 's', '{words}'[7 * i:], {{}}, ()) for i in range(60)]; "
        "print(hashlib.sha256(deb.features(packages, dim=4).tobytes()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
