"""Node classification with GraphSAGE and DGL, as public examples do it.

``dgl_sage.py`` keeps features in a memory map; ``dgl_sage_gids.py`` is the same script with two lines changed.
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


class SAGE(torch.nn.Module):
    def __init__(self, in_dim, hidden_dim, num_classes):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [dgl.nn.SAGEConv(in_dim, hidden_dim, "mean"), dgl.nn.SAGEConv(hidden_dim, num_classes, "mean")]
        )

    def forward(self, blocks, x):
        x = F.relu(self.layers[0](blocks[0], x))
        return self.layers[1](blocks[1], x)


def load_graph(path):
    src, dst = torch.from_numpy(np.load(path / "edges.npy"))
    label = torch.from_numpy(np.load(path / "label.npy"))
    g = dgl.graph((src, dst), num_nodes=len(label))
    g.ndata["feat"] = torch.from_numpy(np.load(path / "feat.npy", mmap_mode="c"))
    g.ndata["label"] = label
    return g, torch.from_numpy(np.load(path / "train.npy")), torch.from_numpy(np.load(path / "test.npy"))


def make_loader(g, nodes, args, shuffle):
    sampler = NeighborSampler([5, 5], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    return DataLoader(g, nodes, sampler, batch_size=args.batch_size, shuffle=shuffle)


def accuracy(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for _, output_nodes, blocks in loader:
            predicted = model(blocks, blocks[0].srcdata["feat"]).argmax(1)
            right += (predicted == blocks[-1].dstdata["label"]).sum().item()
            total += len(output_nodes)
    return right / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path, help="directory with edges.npy, feat.npy, label.npy, train.npy, test.npy")
    parser.add_argument("--dataset", type=Path, help="the same graph as a gids dataset (`gids convert`)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=512)
    args = parser.parse_args()

    torch.manual_seed(0)
    np.random.seed(0)
    dgl.seed(0)
    g, train_nodes, test_nodes = load_graph(args.path)
    train_loader = make_loader(g, train_nodes, args, shuffle=True)
    test_loader = make_loader(g, test_nodes, args, shuffle=False)
    model = SAGE(g.ndata["feat"].shape[1], 64, int(g.ndata["label"].max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for _input_nodes, _output_nodes, blocks in train_loader:
            loss = F.cross_entropy(model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(train_loader):.6f}")
    print(f"test accuracy {accuracy(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
