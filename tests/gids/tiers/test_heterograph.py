"""One budget over a heterograph: node types of other dims and dtypes, and edge features, host buffers included."""

import numpy as np
import pytest
import torch

from gids import DatasetWriter
from gids.budget import Pool, Request, TableProfile, split_pool
from gids.sampling import NeighborSampler, SampleKey, SeedOrder, Topology
from gids.storage import RowReader, StorageOptions
from gids.storage.curve import DEFAULT_CURVE
from gids.tiers import EdgeScores, HostBuffer, RowScores, TableStore, rank_nodes
from gids.types import TableKey

from .conftest import begun

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
MIB = 1 << 20
KEYS = [TableKey(*pair) for pair in (("paper", "feat"), ("author", "feat"), ("author", "year"), (CITES, "weight"))]


def popular(num_src, num_dst, num_edges, seed):
    """Edges whose sources follow a power law, by destination."""
    generator = np.random.default_rng(seed)
    degrees = np.bincount(generator.integers(0, num_dst, num_edges), minlength=num_dst)
    return np.concatenate([[0], np.cumsum(degrees)]), (num_src * generator.random(num_edges) ** 3).astype(np.int64)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    generator = torch.Generator().manual_seed(0)
    values = {
        KEYS[0]: torch.randn(6000, 64, generator=generator),
        KEYS[1]: torch.randn(3000, 33, generator=generator).half(),
        KEYS[2]: torch.randint(0, 99, (3000, 1), generator=generator),
        KEYS[3]: torch.randn(40_000, 5, generator=generator),
    }
    with DatasetWriter(tmp_path_factory.mktemp("tiers") / "g") as writer:
        writer.add_nodes(6000, "paper")
        writer.add_nodes(3000, "author")
        writer.add_csc(*popular(3000, 6000, 30_000, 1), etype=WRITES)
        writer.add_csc(*popular(6000, 6000, 40_000, 2), etype=CITES)
        writer.add_features(values[KEYS[0]], "paper")
        writer.add_features(values[KEYS[1]], "author")
        writer.add_features(values[KEYS[2]], "author", name="year")
        writer.add_edge_features(values[KEYS[3]], CITES, name="weight")
        writer.add_split("train", torch.arange(0, 6000, 3), "paper")
        return writer.finish(), values


@pytest.fixture(scope="module")
def profiles(graph):
    dataset, _ = graph
    seeds = {"paper": dataset.split("train", "paper")}
    order, topology = SeedOrder(seeds, batch_size=64), Topology.from_dataset(dataset)
    sampler = NeighborSampler([5, 5], edge_ids=True)
    samples = [sampler.sample(topology, order[i].seeds, SampleKey(batch=i)) for i in range(16)]
    scores = rank_nodes(dataset, seeds, by="pagerank")
    found = {}
    for key in KEYS:
        if key.is_edge:
            batches = [torch.cat([block.edge_ids[key.type] for block in s.blocks]).unique() for s in samples]
            table, hot = dataset.edge_feature_table(*key), EdgeScores(scores[key.type[2]], dataset.indptr(key.type))
        else:
            batches = [sample.input_nodes[key.type] for sample in samples]
            table, hot = dataset.feature_table(*key), RowScores(scores[key.type])
        found[key] = TableProfile(table, batches, hot)
    return found


@pytest.mark.parametrize(
    "fixed", [{}, {"host_buffer": 300_000}, {"host_buffer": 200_000, "cache": 200_000, "window": 2}]
)
def test_every_table_keeps_to_the_budget_and_gives_its_rows(graph, profiles, fixed):
    budget = 3 * MIB
    split = split_pool(Pool(budget), profiles, DEFAULT_CURVE, Request(staging=MIB, **fixed))
    tables = {key: profile.table for key, profile in profiles.items()}
    rows = sum(s.cache_bytes(tables[k]) + s.host_bytes(tables[k]) + s.group_bytes for k, s in split.tables.items())
    assert rows + split.staging_bytes + split.waiting_bytes <= budget
    assert set(split.tables) == set(KEYS)
    _, values = graph
    held = cached = hits = 0
    for key, share in split.tables.items():
        profile = profiles[key]
        with RowReader(profile.table, StorageOptions(engine="pread", staging_bytes=MIB)) as reader:
            top = profile.hot.top(share.host_rows)
            host = HostBuffer.load(profile.table, reader, top) if len(top) else None
            store = TableStore(
                profile.table, reader, cache_rows=share.cache_rows, window=split.window, host_buffer=host
            )
            held, cached = held + (0 if host is None else host.nbytes), cached + store.cache.nbytes
            for begin in range(0, 16, split.sweep_batches):
                end = min(begin + split.sweep_batches, 16)
                ticket = begun(store, profile.batches[begin:end], profile.batches[end:])
                for i in range(end - begin):
                    rows = store.gather(ticket, i)
                    assert torch.equal(rows, values[key][profile.batches[begin + i]]), key
            counted = store.counts()
            served = sum(counted[source] for source in ("cache", "host", "disk", "duplicates"))
            assert counted["requests"] == served == sum(map(len, profile.batches))
            hits += counted["host"]
    if "host_buffer" in fixed:
        assert 0.7 * fixed["host_buffer"] < held <= fixed["host_buffer"]
        assert hits > 0
    if "cache" in fixed:
        assert cached <= fixed["cache"]


def test_edges_of_popular_nodes_are_held(graph, profiles):
    """The edge table's host buffer takes whole neighbourhoods that sampling visits, so it serves more than its share."""
    hot = profiles[CITES, "weight"].hot.top(8000)
    assert 0.9 * 8000 < len(hot) <= 8000
    held = torch.zeros(40_000, dtype=torch.bool)
    held[hot] = True
    batches = profiles[CITES, "weight"].batches
    served = sum(int(held[rows].sum()) for rows in batches) / sum(map(len, batches))
    assert served > 1.3 * 8000 / 40_000
