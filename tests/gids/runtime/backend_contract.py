"""What every backend keeps of gids/runtime/backend.py: run over the CPU's here, over CUDA's in standin/case_backend.py."""

import numpy as np
import pytest
import torch

from gids import ConfigError, DatasetWriter
from gids._native import ThreadPool
from gids.budget import TableShare
from gids.dataset.rows import as_tensor, read_rows
from gids.runtime.backend import StoreSetup, sample_on_host
from gids.runtime.options import OutputOptions, RuntimeOptions
from gids.runtime.work import Fetched, Work
from gids.sampling import EdgeSeeds, NeighborSampler, SampleKey, Topology
from gids.tiers import fetch_now
from gids.types import EDGE, NODE, TableKey

KEY = SampleKey(3, 1, 2)
FEAT = TableKey(NODE, "feat")
SETUP = StoreSetup(
    TableShare(cache_rows=40, host_rows=0, group_bytes=1 << 16),
    staging_bytes=1 << 20,
    window=2,
    sweep_groups=1,
    groups_in_flight=2,
    keep_outputs=2,
    policy="window",
)


class BackendContract:
    """Subclasses open a backend: ``open(options, pool)``."""

    @pytest.fixture
    def graph(self, tmp_path):
        rng = np.random.default_rng(1)
        indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 300))])
        with DatasetWriter(tmp_path / "g") as writer:
            writer.add_nodes(300)
            writer.add_features(rng.standard_normal((300, 7)).astype(np.float32))
            writer.add_csc(indptr, rng.integers(0, 300, indptr[-1]))
            return writer.finish()

    @pytest.fixture
    def backend(self):
        backend = self.open(RuntimeOptions(budget="64MiB"), ThreadPool(2, "gids-pool"))
        yield backend
        backend.close()

    def test_says_what_there_is_to_divide(self, backend):
        assert backend.memory.host == 64 << 20
        assert backend.ledger.limit == (backend.memory.host if backend.memory.device is None else backend.memory.device)
        assert backend.pace.prefetch == 2
        assert backend.name

    @pytest.mark.parametrize("edge_types", [[], [EDGE]])
    @pytest.mark.parametrize("of_edges", [False, True])
    def test_samples_are_the_samplers(self, backend, graph, edge_types, of_edges):
        topology = Topology.from_dataset(graph)
        nodes = torch.arange(0, 60, 2)
        seeds = EdgeSeeds(nodes, nodes + 1, negatives=2) if of_edges else {NODE: nodes}
        sampler = NeighborSampler([3, 4], edge_ids=True)
        sampled = backend.sample(topology, sampler, seeds, KEY, edge_types)
        expected = sample_on_host(topology, sampler, seeds, KEY, edge_types, None)
        sample, places = backend.deliver_sample(sampled)
        assert torch.equal(sample.input_nodes[NODE], expected.sample.input_nodes[NODE])
        for one, other in zip(sample.blocks, expected.sample.blocks, strict=True):
            assert (one.num_src, one.num_dst) == (other.num_src, other.num_dst)
            assert torch.equal(one.indptr[EDGE], other.indptr[EDGE])
            assert torch.equal(one.src[EDGE], other.src[EDGE])
        assert torch.equal(backend.row_ids(sampled.input_nodes[NODE]), expected.input_nodes[NODE])
        assert set(places) == set(edge_types)
        for etype in edge_types:
            distinct = backend.row_ids(sampled.edge_rows[etype])
            assert len(distinct) == len(expected.edge_rows[etype])
            for block, place in zip(sample.blocks, places[etype], strict=True):
                assert torch.equal(distinct[place], block.edge_ids[etype])
        assert sampled.size_bytes > 0

    def test_edges_without_ids_are_refused(self, backend, graph):
        topology, seeds = Topology.from_dataset(graph), {NODE: torch.arange(9)}
        with pytest.raises(ConfigError, match="features of edges need a sampler that returns edge ids"):
            backend.sample(topology, NeighborSampler([2]), seeds, KEY, [EDGE])

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    def test_row_ids_of_a_framework_come_back(self, backend, dtype):
        rows = torch.tensor([5, 1, 200, 3], dtype=dtype)
        placed = backend.place(rows)
        assert len(placed) == 4
        assert torch.equal(backend.row_ids(placed), rows.long())

    def test_a_store_has_the_tables_rows(self, backend, graph):
        table = graph.feature_table()
        values = as_tensor(table, read_rows(table))
        store = backend.open_store(table, SETUP)
        assert table.name in backend.notes
        for rows in (torch.arange(0, 90, 3), torch.tensor([299, 0, 3])):
            work = Work(None, {FEAT: backend.place(rows)}, 0)
            fetched = Fetched(work, {FEAT: fetch_now(store, work.rows[FEAT])}, {})
            assert torch.equal(backend.deliver(fetched).rows[FEAT], values[rows])
        counts = store.counts()
        assert counts["requests"] == 33
        assert 0 < counts["cache"] <= 3
        assert backend.ledger.usage()["cache"].used > 0
        store.close()
        assert backend.ledger.usage()["cache"].used == 0

    def test_rows_are_read_to_host_memory(self, backend, graph):
        table, rows = graph.feature_table(), torch.tensor([7, 9, 250])
        values = torch.empty(3, 7)
        backend.read_host_rows(table, rows, values)
        assert torch.equal(values, as_tensor(table, read_rows(table))[rows])

    def test_rows_come_in_the_type_asked_for(self, graph):
        options = RuntimeOptions(budget="64MiB", output=OutputOptions(dtype=torch.float64))
        backend = self.open(options, ThreadPool(1, "gids-pool"))
        table, rows = graph.feature_table(), torch.arange(10)
        store = backend.open_store(table, SETUP)
        fetched = Fetched(Work(None, {}, 0), {FEAT: fetch_now(store, backend.place(rows))}, {})
        delivered = backend.deliver(fetched).rows[FEAT]
        assert torch.equal(delivered, as_tensor(table, read_rows(table))[:10].double())
        del fetched, delivered
        store.close()
        backend.close()

    def test_tensors_are_delivered_wherever_they_are(self, backend):
        value = {"a": [torch.arange(3)], "b": (torch.ones(2), "text")}
        delivered = backend.deliver_tensors(value)
        assert torch.equal(delivered["a"][0].cpu(), value["a"][0])
        assert torch.equal(delivered["b"][0].cpu(), value["b"][0])
        assert delivered["b"][1] == "text"
