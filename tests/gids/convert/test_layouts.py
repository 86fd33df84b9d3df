"""Every published layout, in miniature, becomes the dataset that its own loader would describe."""

import gzip
import json

import numpy as np
import pytest
import torch

from gids import ConfigError, DatasetError
from gids.convert import ArrayFiles, ConvertOptions, convert, detect
from gids.dataset import verify
from tests.fuzz.targets import Ginex as GinexTarget
from tests.packages import NO_DGL

from .graphs import by_destination, random_edges, stored_edges, values

N, E = 50, 300
X = np.random.default_rng(1).standard_normal((N, 9)).astype(np.float32)
EDGES = random_edges(N, N, E)
Y = np.arange(N) % 5


def gz(path, rows, fmt="%d"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        if isinstance(rows, str):
            file.write(rows)
        else:
            np.savetxt(file, rows, fmt=fmt, delimiter=",")


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def check(source, out, layout, **details):
    """Convert after finding out the layout; the result must verify."""
    assert detect(source) == layout
    dataset = convert(source, out, **details)
    assert verify(dataset) == []
    assert [entry.name for entry in out.parent.iterdir() if entry.name.startswith(".")] == []
    return dataset


def ogb_splits(root, directory=""):
    for name, ids in (("train", range(30)), ("valid", range(30, 40)), ("test", range(40, 50))):
        gz(root / "split" / "time" / directory / f"{name}.csv.gz", np.array(ids))


@pytest.mark.parametrize("name", ["ogbn_arxiv", "ogbn_products"])
def test_ogb_csv(tmp_path, name):
    root = tmp_path / name
    gz(root / "raw/edge.csv.gz", EDGES.T)
    gz(root / "raw/num-node-list.csv.gz", [N])
    gz(root / "raw/num-edge-list.csv.gz", [E])
    gz(root / "raw/node-feat.csv.gz", X, "%.9g")
    gz(root / "raw/node_year.csv.gz", 1990 + Y)
    gz(root / "raw/node-label.csv.gz", Y)
    ogb_splits(root)
    dataset = check(root, tmp_path / "out", "ogb")
    expected = EDGES
    if name == "ogbn_products":  # OGB's own loader puts the inverse right behind every edge
        expected = np.empty((2, 2 * E), np.int64)
        expected[:, 0::2], expected[:, 1::2] = EDGES, EDGES[::-1]
    assert np.array_equal(stored_edges(dataset), by_destination(expected))
    assert np.array_equal(values(dataset.feature_table()), X)
    assert values(dataset.feature_table(name="year")).tolist() == (1990 + Y).tolist()
    assert dataset.labels().tolist() == Y.tolist()
    assert dataset.num_classes == 5
    assert dataset.split("train").tolist() == list(range(30))
    assert dataset.split("val").tolist() == list(range(30, 40))


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
def test_ogb_papers100m(tmp_path, save_npz):
    root = tmp_path / "ogbn_papers100M"
    (root / "raw").mkdir(parents=True)
    save_npz(
        root / "raw/data.npz",
        edge_index=EDGES,
        num_nodes_list=np.array([N]),
        num_edges_list=np.array([E]),
        node_feat=X,
        node_year=(1990 + Y).reshape(-1, 1),
    )
    label = Y.astype(np.float32).reshape(-1, 1)
    label[40:] = np.nan
    save_npz(root / "raw/node-label.npz", node_label=label)
    ogb_splits(root)
    dataset = check(root, tmp_path / "out", "ogb")
    assert np.array_equal(stored_edges(dataset), by_destination(EDGES))
    assert np.array_equal(values(dataset.feature_table()), X)
    assert dataset.labels().tolist() == Y[:40].tolist() + [-1] * 10
    assert dataset.num_classes == 5
    assert dataset.split("test").tolist() == list(range(40, 50))


def test_ogb_mag(tmp_path):
    root = tmp_path / "ogbn_mag"
    writes = random_edges(20, N, 70)
    gz(root / "raw/num-node-dict.csv.gz", f"author,paper\n20,{N}\n")
    gz(root / "raw/triplet-type-list.csv.gz", "author,writes,paper\npaper,cites,paper\n")
    gz(root / "raw/nodetype-has-label.csv.gz", "author,paper\nFalse,True\n")
    gz(root / "raw/node-feat/paper/node-feat.csv.gz", X, "%.9g")
    gz(root / "raw/node-label/paper/node-label.csv.gz", Y)
    for relation, edges in (("author___writes___paper", writes), ("paper___cites___paper", EDGES)):
        gz(root / "raw/relations" / relation / "edge.csv.gz", edges.T)
        gz(root / "raw/relations" / relation / "num-edge-list.csv.gz", [edges.shape[1]])
        gz(root / "raw/relations" / relation / "edge_reltype.csv.gz", np.arange(edges.shape[1]))
    gz(root / "split/time/nodetype-has-split.csv.gz", "author,paper\nFalse,True\n")
    ogb_splits(root, "paper")
    dataset = check(root, tmp_path / "out", "ogb")
    etype = ("author", "writes", "paper")
    assert dataset.num_nodes("author") == 20
    assert np.array_equal(stored_edges(dataset, etype), by_destination(writes))
    # Edge features keep the order of the file; edge ids lead to them.
    ids = values(dataset.edge_ids_table(etype)).numpy()
    assert np.array_equal(writes[:, ids], by_destination(writes))
    assert values(dataset.edge_feature_table(etype, "reltype")).tolist() == list(range(70))
    assert dataset.labels("paper").tolist() == Y.tolist()
    assert dataset.split("train", "paper").tolist() == list(range(30))


def test_ogb_binary_heterogeneous(tmp_path):
    raw = tmp_path / "ogbn_kg" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "num_nodes_dict.npz", paper=np.array([N]), author=np.array([20]))
    np.savez(raw / "num_edges_dict.npz", paper___cites___paper=np.array([E]))
    np.savez(raw / "edge_index_dict.npz", paper___cites___paper=EDGES)
    np.savez(raw / "node_feat_dict.npz", paper=X)
    np.savez(raw / "node-label.npz", paper=Y.reshape(-1, 1))
    torch.save({"train": {"paper": torch.arange(5)}}, _made(raw.parent / "split/random") / "split_dict.pt")
    dataset = check(raw.parent, tmp_path / "out", "ogb")
    assert np.array_equal(values(dataset.feature_table("paper")), X)
    assert np.array_equal(stored_edges(dataset), by_destination(EDGES))
    assert dataset.split("train", "paper").tolist() == [0, 1, 2, 3, 4]


def _made(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("header", [True, False])
def test_igb(tmp_path, header):
    """Small sizes are .npy files; large and full call raw rows .npy."""
    root = tmp_path / "small"
    x = np.random.default_rng(0).standard_normal((N, 1024)).astype(np.float32)
    paper = _made(root / "processed/paper")
    if header:
        np.save(paper / "node_feat.npy", x)
        np.save(paper / "node_label_19.npy", Y.astype(np.float32))
    else:
        x.tofile(paper / "node_feat.npy")
        Y.astype(np.float32).tofile(paper / "node_label_19.npy")
    save(root / "processed/paper__cites__paper/edge_index.npy", EDGES.T)
    for in_place in (True, False):
        out = tmp_path / f"out{in_place}"
        dataset = check(root, out, "igb", options=ConvertOptions(in_place=in_place))
        assert dataset.node_types == ["_N"]
        assert np.array_equal(values(dataset.feature_table()), x)
        assert (dataset.feature_table().stripes[0].path == paper / "node_feat.npy") == in_place
        assert np.array_equal(stored_edges(dataset), by_destination(EDGES))
        assert dataset.labels().tolist() == Y.tolist()
        assert dataset.num_classes == 19
        assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [30, 10, 10]


def test_igb_heterogeneous(tmp_path):
    root = tmp_path / "tiny" / "processed"
    save(root / "paper/node_feat.npy", np.ones((N, 1024), np.float32))
    save(root / "author/node_feat.npy", np.ones((20, 1024), np.float16))
    save(root / "paper/node_label_2K.npy", Y.astype(np.float32))
    save(root / "paper__cites__paper/edge_index.npy", EDGES.T)
    written = random_edges(N, 20, 60)
    topic = random_edges(N, 4, 60)
    save(root / "paper__written_by__author/edge_index.npy", written.T)
    save(root / "paper__topic__fos/edge_index.npy", topic.T)
    dataset = check(root.parent, tmp_path / "out", "igb", num_classes=2983, options=ConvertOptions(add_reverse=True))
    assert dataset.num_nodes("fos") == topic[1].max() + 1 or dataset.num_nodes("fos") == topic.max() + 1
    assert dataset.num_classes == 2983
    assert dataset.feature_table("author").dtype == "float16"
    assert np.array_equal(stored_edges(dataset, ("paper", "written_by", "author")), by_destination(written))
    reverse = stored_edges(dataset, ("author", "rev_written_by", "paper"))
    assert np.array_equal(reverse, by_destination(written[::-1]))
    assert dataset.num_edges(("paper", "cites", "paper")) == 2 * E
    with pytest.raises(ConfigError, match="19 or 2983"):
        convert(root.parent, tmp_path / "other", num_classes=7)


def test_mag240m(tmp_path):
    root = _made(tmp_path / "mag240m_kddcup2021")
    torch.save({"paper": N, "author": 20, "institution": 3, "num_classes": 153}, root / "meta.pt")
    splits = {"train": np.arange(30), "valid": np.arange(30, 40), "test-dev": np.arange(40, 50)}
    torch.save(splits, root / "split_dict.pt")
    x = np.random.default_rng(0).standard_normal((N, 768)).astype(np.float16)
    label = Y.astype(np.float32)
    label[::7] = np.nan
    save(root / "processed/paper/node_feat.npy", x)
    save(root / "processed/paper/node_label.npy", label)
    save(root / "processed/paper/node_year.npy", 1990 + Y)
    writes, member = random_edges(20, N, 70), random_edges(20, 3, 25)
    save(root / "processed/author___writes___paper/edge_index.npy", writes)
    save(root / "processed/author___affiliated_with___institution/edge_index.npy", member)
    save(root / "processed/paper___cites___paper/edge_index.npy", EDGES)
    dataset = check(root, tmp_path / "out", "mag240m")
    assert np.array_equal(values(dataset.feature_table("paper")), x)
    assert dataset.labels("paper").tolist() == [-1 if i % 7 == 0 else y for i, y in enumerate(Y.tolist())]
    assert dataset.num_classes == 153
    assert np.array_equal(stored_edges(dataset, ("author", "affiliated_with", "institution")), by_destination(member))
    assert np.array_equal(stored_edges(dataset, ("author", "writes", "paper")), by_destination(writes))
    assert dataset.split("val").tolist() == list(range(30, 40))
    assert dataset.split("test-dev").tolist() == list(range(40, 50))


@pytest.mark.parametrize("suffix", ["", "-9"])
def test_ginex(tmp_path, suffix):
    """Ginex writes conf.json and features.dat, GNNDrive conf-<dim>.json and features-<dim>.dat."""
    root = _made(tmp_path / "papers-ginex")
    ordered = by_destination(EDGES)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(EDGES[1], minlength=N))])
    parts = {"indptr": indptr, "indices": ordered[0], "features": X, "labels": Y.astype(np.float64)}
    conf = {"num_nodes": N, "num_classes": 5}
    for name, array in parts.items():
        array.tofile(root / f"{name}{suffix if name == 'features' else ''}.dat")
        conf |= {f"{name}_shape": list(array.shape), f"{name}_dtype": str(array.dtype)}
    (root / f"conf{suffix}.json").write_text(json.dumps(conf))
    splits = {"train": torch.arange(30), "valid": torch.arange(30, 40), "test": torch.arange(40, 50)}
    torch.save(splits, root / "split_idx.pth")
    dataset = check(root, tmp_path / "out", "ginex", options=ConvertOptions(in_place=True))
    assert np.array_equal(stored_edges(dataset), ordered)
    assert np.array_equal(values(dataset.feature_table()), X)
    assert dataset.feature_table().stripes[0].path == root / f"features{suffix}.dat"
    assert dataset.labels().tolist() == Y.tolist()
    assert dataset.split("val").tolist() == list(range(30, 40))
    (root / "indices.dat").unlink()
    with pytest.raises(DatasetError, match=r"indices\.dat must be a file"):
        convert(root, tmp_path / "other")


@pytest.mark.parametrize(
    "change",
    [
        lambda conf: conf.pop("labels_dtype"),
        lambda conf: conf.update(num_classes="many"),
        lambda conf: conf.update(features_shape=[]),
        lambda conf: conf.update(indices_dtype=5),
        lambda conf: conf.update(num_nodes=float("inf")),
        lambda conf: conf.update(indptr_shape=[2**70, 2**70]),
    ],
)
def test_a_strangers_description_is_read_or_refused(tmp_path, change):
    root = GinexTarget(tmp_path).place()
    conf = json.loads(GinexTarget(tmp_path).valid())
    change(conf)
    (root / "conf.json").write_text(json.dumps(conf))
    with pytest.raises(DatasetError, match="ginex"):
        convert(root, tmp_path / "out")


def test_a_detail_of_another_layout_is_a_mistake_of_the_callers(tmp_path):
    with pytest.raises(TypeError, match="trust"):
        convert(GinexTarget(tmp_path).place(), tmp_path / "out", format="ginex", trust=True)


def test_graphbolt_homogeneous(tmp_path):
    root = _made(tmp_path / "bolt")
    save(root / "node/feat.npy", X)
    save(root / "edges/all.npy", EDGES)
    for name, ids in (("train", np.arange(30)), ("val", np.arange(30, 40)), ("test", np.arange(40, 45))):
        save(root / f"set/{name}_seeds.npy", ids)
        save(root / f"set/{name}_labels.npy", Y[ids])

    def part(name):
        entry = "          - {{name: {1}, format: numpy, path: set/{0}_{1}.npy}}\n"
        return "      - data:\n" + "".join(entry.format(name, kind) for kind in ("seeds", "labels"))

    (root / "metadata.yaml").write_text(f"""
dataset_name: toy
graph:
  nodes:
    - num: {N}
  edges:
    - format: numpy
      path: edges/all.npy
feature_data:
  - domain: node
    type: null
    name: feat
    format: numpy
    in_memory: false
    path: node/feat.npy
tasks:
  - name: node_classification
    num_classes: 5
    train_set:
{part("train")}    validation_set:
{part("val")}    test_set:
{part("test")}""")
    dataset = check(root, tmp_path / "out", "graphbolt")
    assert np.array_equal(stored_edges(dataset), by_destination(EDGES))
    assert np.array_equal(values(dataset.feature_table()), X)
    assert dataset.labels().tolist() == Y[:45].tolist() + [-1] * 5
    assert dataset.num_classes == 5
    assert dataset.split("test").tolist() == list(range(40, 45))


def test_graphbolt_heterogeneous(tmp_path):
    root = _made(tmp_path / "bolt")
    writes = random_edges(20, N, 70)
    np.savetxt(_made(root / "edge") / "writes.csv", writes.T, fmt="%d", delimiter=",")
    save(root / "edge/weight.npy", np.arange(70, dtype=np.float32))
    torch.save(torch.from_numpy(X), root / "feat.pt")
    save(root / "train.npy", np.array([3, 1]))
    save(root / "labels.npy", np.array([2, 0]))
    (root / "metadata.yaml").write_text(f"""
dataset_name: toy
graph:
  nodes: [{{type: paper, num: {N}}}, {{type: author, num: 20}}]
  edges: [{{type: "author:writes:paper", format: csv, path: edge/writes.csv}}]
feature_data:
  - {{domain: node, type: paper, name: feat, format: torch, path: feat.pt}}
  - {{domain: edge, type: "author:writes:paper", name: w, format: numpy, path: edge/weight.npy}}
tasks:
  - name: t
    num_classes: 3
    train_set:
      - type: paper
        data:
          - {{name: seed_nodes, format: numpy, path: train.npy}}
          - {{name: labels, format: numpy, path: labels.npy}}
""")
    dataset = check(root / "metadata.yaml", tmp_path / "out", "graphbolt")
    etype = ("author", "writes", "paper")
    assert np.array_equal(stored_edges(dataset, etype), by_destination(writes))
    ids = values(dataset.edge_ids_table(etype))
    assert values(dataset.edge_feature_table(etype, "w"))[ids].tolist() == ids.tolist()
    assert dataset.labels("paper")[[3, 1, 0]].tolist() == [2, 0, -1]


def test_graphbolt_refuses(tmp_path):
    path = tmp_path / "metadata.yaml"
    for text, message in (
        ("graph_topology: {}", "preprocessed"),
        ("a: 1", "names no graph"),
        ("a: [", "must be YAML"),
        ("graph: {nodes: [{num: 1}]}", "GraphBolt's specification"),
        (
            "graph: {nodes: [{num: 1}], edges: [{format: csv, path: none.csv}]}",
            r"none\.csv, which .* names, must be a file",
        ),
    ):
        path.write_text(text)
        with pytest.raises(DatasetError, match=message):
            convert(path, tmp_path / "out")


def test_dgl_homogeneous(tmp_path):
    dgl = pytest.importorskip("dgl", reason=NO_DGL)
    graph = dgl.graph((torch.from_numpy(EDGES[0]), torch.from_numpy(EDGES[1])), num_nodes=N)
    graph.ndata["feat"] = torch.from_numpy(X)
    graph.ndata["label"] = torch.from_numpy(Y)
    graph.ndata["train_mask"] = torch.arange(N) < 10
    graph.edata["w"] = torch.arange(E, dtype=torch.float32)
    graph.edata["kind"] = torch.arange(E)
    dgl.save_graphs(str(tmp_path / "graph.bin"), [graph])
    dataset = check(tmp_path / "graph.bin", tmp_path / "out", "dgl")
    assert np.array_equal(stored_edges(dataset), by_destination(EDGES))
    assert np.array_equal(values(dataset.feature_table()), X)
    assert dataset.labels().tolist() == Y.tolist()
    assert dataset.split("train").tolist() == list(range(10))
    ids = values(dataset.edge_ids_table())
    assert values(dataset.edge_weight_table()).tolist() == ids.tolist()
    assert values(dataset.edge_feature_table(name="kind")).tolist() == list(range(E))


def test_dgl_heterogeneous_and_broken(tmp_path):
    dgl = pytest.importorskip("dgl", reason=NO_DGL)
    writes = random_edges(20, N, 70)
    graph = dgl.heterograph(
        {("author", "writes", "paper"): tuple(torch.from_numpy(writes)), ("paper", "cites", "paper"): ([0, 1], [1, 2])},
        {"author": 20, "paper": N},
    )
    graph.nodes["paper"].data["x"] = torch.from_numpy(X)
    dgl.save_graphs(str(tmp_path / "graph.dgl"), [graph])
    dataset = check(tmp_path / "graph.dgl", tmp_path / "out", "dgl")
    assert np.array_equal(stored_edges(dataset, ("author", "writes", "paper")), by_destination(writes))
    assert np.array_equal(values(dataset.feature_table("paper")), X)
    (tmp_path / "broken.bin").write_bytes(b"no graph at all")
    with pytest.raises(DatasetError, match=r"must be a file of dgl\.save_graphs"):
        convert(tmp_path / "broken.bin", tmp_path / "other")


def test_pyg_data(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    mask = torch.stack([torch.arange(N) < 10, torch.arange(N) < 20], dim=1)
    graph = data.Data(
        x=torch.from_numpy(X).to(torch.bfloat16),
        edge_index=torch.from_numpy(EDGES),
        y=torch.from_numpy(Y),
        edge_attr=torch.arange(E).view(-1, 1).float(),
        edge_weight=torch.arange(E).float(),
        train_mask=mask,
    )
    torch.save(graph, tmp_path / "data.pt")
    dataset = check(tmp_path / "data.pt", tmp_path / "out", "pyg")
    assert torch.equal(values(dataset.feature_table()), torch.from_numpy(X).to(torch.bfloat16))
    assert np.array_equal(stored_edges(dataset), by_destination(EDGES))
    ids = values(dataset.edge_ids_table())
    assert values(dataset.edge_weight_table()).tolist() == ids.tolist()
    assert values(dataset.edge_feature_table()).tolist() == list(range(E))
    assert dataset.split("train").tolist() == list(range(10))


def test_pyg_heterogeneous(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    graph = data.HeteroData()
    graph["paper"].x = torch.from_numpy(X)
    graph["author"].num_nodes = 20
    writes = random_edges(20, N, 70)
    graph["author", "writes", "paper"].edge_index = torch.from_numpy(writes)
    torch.save(graph, tmp_path / "data.pt")
    dataset = check(tmp_path / "data.pt", tmp_path / "out", "pyg")
    assert dataset.num_nodes("author") == 20
    assert np.array_equal(stored_edges(dataset), by_destination(writes))


class Surprise:
    def __reduce__(self):
        return print, ("code of a stranger ran",)


def test_pyg_dict_and_untrusted(tmp_path, capsys):
    torch.save({"edge_index": torch.from_numpy(EDGES), "x": torch.from_numpy(X)}, tmp_path / "plain.pt")
    assert np.array_equal(stored_edges(convert(tmp_path / "plain.pt", tmp_path / "a")), by_destination(EDGES))
    torch.save({"edge_index": torch.from_numpy(EDGES), "surprise": Surprise()}, tmp_path / "evil.pt")
    with pytest.raises(DatasetError, match=r"could run code.*--trust"):
        convert(tmp_path / "evil.pt", tmp_path / "b")
    assert capsys.readouterr().out == ""
    convert(tmp_path / "evil.pt", tmp_path / "b", trust=True)
    assert "code of a stranger ran" in capsys.readouterr().out
    (tmp_path / "broken.pt").write_bytes(b"nothing")
    with pytest.raises(DatasetError, match=r"must be a file of torch\.save|could run code"):
        convert(tmp_path / "broken.pt", tmp_path / "c")


def test_arrays_directory(tmp_path):
    root = tmp_path / "arrays"
    save(root / "x.npy", np.asfortranarray(X))
    save(root / "edge_index.npy", EDGES.astype(np.int32))
    save(root / "y.npy", Y.astype(">i4"))
    save(root / "train.npy", np.arange(N) % 2 == 0)
    save(root / "edge_weights.npy", np.arange(E, dtype=np.float64))
    dataset = check(root, tmp_path / "out", "arrays", options=ConvertOptions(feature_dtype="float16", add_reverse=True))
    assert np.array_equal(values(dataset.feature_table()), X.astype(np.float16))
    both = np.empty((2, 2 * E), np.int64)
    both[:, 0::2], both[:, 1::2] = EDGES, EDGES[::-1]
    assert np.array_equal(stored_edges(dataset), by_destination(both))
    assert values(dataset.edge_weight_table()).dtype == torch.float64
    assert dataset.labels().tolist() == Y.tolist()
    assert dataset.split("train").tolist() == list(range(0, N, 2))


def test_arrays_csc(tmp_path):
    root = tmp_path / "arrays"
    save(root / "indptr.npy", np.array([0, 1, 1, 3]))
    save(root / "indices.npy", np.array([2, 0, 1]))
    save(root / "features.npy", X[:3])
    dataset = check(root, tmp_path / "out", "arrays", options=ConvertOptions(in_place=True))
    assert stored_edges(dataset).tolist() == [[2, 0, 1], [0, 2, 2]]
    assert dataset.feature_table().stripes[0].data_offset == 128
    assert np.array_equal(values(dataset.feature_table()), X[:3])
    save(root / "indices.npy", np.array([2, 2**32, 1]))
    with pytest.raises(ConfigError, match=r"source ids of _N:_E:_N must be in \[0, 3\) \(got 4294967296 at row 1\)"):
        convert(root, tmp_path / "other")


@pytest.mark.parametrize(
    "text",
    ["0,1\n2,1\n1,0\n", "# comment\n0 1\n\n2\t1\n1  0", "src,dst\r\n0,1\r\n2,1\r\n1,0\r\n", "% x\n0;1\n2;1\n1;0\n"],
)
def test_edge_list_text(tmp_path, text):
    (tmp_path / "edges.csv").write_text(text)
    dataset = check(tmp_path / "edges.csv", tmp_path / "out", "arrays")
    assert dataset.num_nodes() == 3
    assert stored_edges(dataset).tolist() == [[1, 0, 2], [0, 1, 1]]


def test_edge_list_with_weights(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1 0.5\n2 1 0.25\n1 0 2\n")
    dataset = check(tmp_path / "edges.txt", tmp_path / "out", "arrays")
    assert stored_edges(dataset).tolist() == [[1, 0, 2], [0, 1, 1]]
    assert values(dataset.edge_weight_table()).tolist() == [2, 0.5, 0.25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n2\n", "must have 2 numbers in every line"),
        ("0,1\n2,x\n", "must hold whole numbers"),
        ("0,1.5\n", "must hold whole numbers"),
        ("a,b\nc,d\n", "after at most one line of names"),
        ("0,1\n-2,1\n", r"source id of edge 1 of _N:_E:_N must be in \[0, 2\) \(got -2\)"),
        ("0,1,2,3\n", "must have 2 ids in a row"),
    ],
)
def test_bad_edge_lists(tmp_path, text, message):
    (tmp_path / "edges.csv").write_text(text)
    with pytest.raises((DatasetError, ConfigError), match=message):
        convert(tmp_path / "edges.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ids_out_of_range(tmp_path):
    root = tmp_path / "arrays"
    save(root / "x.npy", X[:10])
    for edges, message in (
        ([[0, 1], [3, 10]], r"destination id of edge 1 .* must be in \[0, 10\) \(got 10\)"),
        ([[0, -1], [3, 1]], r"source id of edge 1 .* \(got -1\)"),
    ):
        save(root / "edges.npy", np.array(edges))
        with pytest.raises(ConfigError, match=message):
            convert(root, tmp_path / "out")
    save(root / "edges.npy", np.array([[0], [1]]))
    save(root / "train.npy", np.array([0, 10]))
    with pytest.raises(ConfigError, match=r"ids of split 'train' of _N must be in \[0, 10\) \(got 10 at row 1\)"):
        convert(root, tmp_path / "out")
    save(root / "train.npy", np.array([0]))
    save(root / "y.npy", np.arange(11))
    with pytest.raises(ConfigError, match="must have 10 rows"):
        convert(root, tmp_path / "out")


def test_unknown(tmp_path):
    with pytest.raises(DatasetError, match="there is none"):
        detect(tmp_path / "none")
    with pytest.raises(DatasetError, match="must have one of the layouts"):
        detect(tmp_path)
    with pytest.raises(ConfigError, match="format must be one of"):
        convert(tmp_path, tmp_path / "out", format="excel")
    with pytest.raises(ConfigError, match="in place"):
        ConvertOptions(in_place=True, feature_dtype="float16")
    with pytest.raises(ConfigError, match=r"edges of .* must be given"):
        convert(tmp_path, tmp_path / "out", format="arrays", files=ArrayFiles())


def test_truncated_npz(tmp_path):
    (tmp_path / "raw").mkdir()
    np.savez(tmp_path / "raw/data.npz", edge_index=EDGES, num_nodes_list=[N], num_edges_list=[E], node_feat=X)
    data = (tmp_path / "raw/data.npz").read_bytes()
    (tmp_path / "raw/data.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DatasetError, match=r"data\.npz must be an \.npz archive"):
        convert(tmp_path, tmp_path / "out")
