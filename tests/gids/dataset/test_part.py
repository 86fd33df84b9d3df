"""One node's part of a dataset: its rows and no others, whole in everything else, checked and refused by name."""

import pytest
import torch

import gids
from gids.cli import main
from gids.dataset.manifest import parse
from gids.dataset.part import write_part
from gids.dataset.rows import as_tensor, read_rows
from gids.dataset.verifier import verify
from gids.errors import ConfigError, DatasetError
from gids.storage import RowReader

NODES = 5003


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Striped features of odd rows, edge features, labels, a split."""
    home = tmp_path_factory.mktemp("whole")
    stripes = [home / "a", home / "b"]
    generator = torch.Generator().manual_seed(2)
    indptr = torch.arange(NODES + 1)
    for directory in stripes:
        directory.mkdir()
    with gids.DatasetWriter(home / "graph", stripe_dirs=stripes) as writer:
        writer.add_nodes(NODES)
        writer.add_features(torch.randn(NODES, 33, generator=generator))
        writer.add_csc(indptr, torch.randint(0, NODES, (NODES,), generator=generator))
        writer.add_edge_features(torch.randn(NODES, 6, generator=generator).half())
        writer.add_labels(torch.randint(0, 5, (NODES,), generator=generator))
        writer.add_split("train", torch.arange(100))
    return gids.open(home / "graph")


@pytest.mark.parametrize("nodes", [1, 3])
def test_parts_have_every_row_once(whole, tmp_path, nodes):
    rows = []
    for node in range(nodes):
        part = write_part(whole, tmp_path / str(node), node=node, nodes=nodes)
        table = part.feature_table()
        rows.append(read_rows(table, *table.held))
        assert part.id == whole.id
        assert torch.equal(part.labels(), whole.labels())
        assert (part.indptr() == whole.indptr()).all()
        assert verify(part) == []
        assert all(stripe.path.is_relative_to(part.path) for stripe in table.stripes)
        edges = part.edge_feature_table(part.edge_types[0])
        assert edges.held == (NODES * node // nodes, NODES * (node + 1) // nodes)
    table = whole.feature_table()
    found = torch.cat([torch.from_numpy(part) for part in rows])
    assert torch.equal(as_tensor(table, found.numpy()), as_tensor(table, read_rows(table)))


def test_rows_of_others_are_refused_by_name(whole, tmp_path):
    part = write_part(whole, tmp_path / "part", node=1, nodes=2)
    table = part.feature_table()
    refusal = r"rows of .*feat must be in \[2501, 5003\), which this part of a dataset holds \(got 0 to 2501\).*shards"
    with RowReader(table) as reader:
        assert torch.equal(reader.read([2501, 5002]), as_tensor(table, read_rows(table, 2501, 5003))[[0, -1]])
        with pytest.raises(ConfigError, match=refusal):
            reader.read([2501, 0])
    with pytest.raises(ConfigError, match="must be in"):
        read_rows(table)
    loader = gids.Loader(part, "train", fanouts=[2], batch_size=50, budget="64MiB")
    with loader, pytest.raises(ConfigError, match=r"shards=gids\.Shards"):
        next(iter(loader))


def test_damage_in_a_part_is_found(whole, tmp_path):
    part = write_part(whole, tmp_path / "part", node=0, nodes=2)
    table = part.feature_table()
    stripe, offset = table.locate(1000)
    with table.stripes[stripe].path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff\xfe")
    (problem,) = verify(part)
    assert problem.first_row == problem.last_row == 1000


def test_an_older_gids_does_not_read_holes(whole, tmp_path):
    part = write_part(whole, tmp_path / "part", node=0, nodes=2)
    text = (part.path / "manifest.json").read_text()
    assert '"version": 3' in text
    assert '"version": 1' in (whole.path / "manifest.json").read_text()
    assert parse(text, part.path).id == whole.id


def test_the_command(whole, tmp_path, capsys):
    command = ["shard", str(whole.path), str(tmp_path / "part"), "--node", "1", "--nodes", "4", "--quiet"]
    assert main(command) == 0
    assert "rows 1,250 to 2,501 of 5,003" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "part"), "--quiet"]) == 0
    assert main(command) == 1
    assert "must not exist" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"node must be in \[0, nodes\) \(got 2 of 2\)"):
        write_part(whole, tmp_path / "other", node=2, nodes=2)
    assert not list(tmp_path.glob("*.unfinished"))
    with pytest.raises(DatasetError, match="must not exist"):
        write_part(whole, tmp_path / "part", node=0, nodes=2)
