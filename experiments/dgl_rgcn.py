"""Node classification on a heterogeneous graph with a relational GCN and DGL, as public examples do it.

``dgl_rgcn.py`` keeps features in a memory map; ``dgl_rgcn_gids.py`` is the same script with two lines changed.
"""

# ruff: noqa: I001, NPY002 (imports one a line, so that the change is one line; DGL shuffles with NumPy's global state)
import argparse
from pathlib import Path

import dgl
import dgl.nn
import numpy as np
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader
from dgl.dataloading import NeighborSampler


class RGCN(torch.nn.Module):
    def __init__(self, g, in_dims, hidden_dim, num_classes):
        super().__init__()
        self.project = torch.nn.ModuleDict({t: torch.nn.Linear(dim, hidden_dim) for t, dim in in_dims.items()})
        self.layers = torch.nn.ModuleList(
            dgl.nn.HeteroGraphConv(
                {relation: dgl.nn.GraphConv(hidden_dim, width, norm="right") for relation in g.etypes}, aggregate="sum"
            )
            for width in (hidden_dim, num_classes)
        )

    def forward(self, blocks, x):
        x = {ntype: F.relu(self.project[ntype](rows)) for ntype, rows in x.items()}
        x = {ntype: F.relu(rows) for ntype, rows in self.layers[0](blocks[0], x).items()}
        return self.layers[1](blocks[1], x)


def load_graph(path):
    (g,), _ = dgl.load_graphs(str(path / "graph.bin"))
    for ntype in g.ntypes:
        g.nodes[ntype].data["feat"] = torch.from_numpy(np.load(path / f"{ntype}_feat.npy", mmap_mode="c"))
    return g, {"paper": torch.nonzero(g.nodes["paper"].data["train"]).flatten()}


def make_loader(g, nodes, args):
    sampler = NeighborSampler(
        [5, 5],
        prefetch_node_feats={ntype: ["feat"] for ntype in g.ntypes},
        prefetch_labels={"paper": ["label"]},
    )
    return DataLoader(g, nodes, sampler, batch_size=args.batch_size, shuffle=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path, help="directory with graph.bin and one <type>_feat.npy per node type")
    parser.add_argument("--dataset", type=Path, help="the same graph as a gids dataset (`gids convert`)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()

    torch.manual_seed(0)
    np.random.seed(0)
    dgl.seed(0)
    g, train_nodes = load_graph(args.path)
    loader = make_loader(g, train_nodes, args)
    labels = g.nodes["paper"].data["label"]
    in_dims = {ntype: g.nodes[ntype].data["feat"].shape[1] for ntype in g.ntypes}
    model = RGCN(g, in_dims, 32, int(labels.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        total = right = seen = 0.0
        for _input_nodes, output_nodes, blocks in loader:
            logits = model(blocks, blocks[0].srcdata["feat"])["paper"]
            target = blocks[-1].dstnodes["paper"].data["label"]
            loss = F.cross_entropy(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            right += (logits.argmax(1) == target).sum().item()
            seen += len(output_nodes["paper"])
        print(f"epoch {epoch} loss {total / len(loader):.6f} training accuracy {right / seen:.4f}")


if __name__ == "__main__":
    main()
