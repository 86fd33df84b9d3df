"""Ranks ask each other for rows, on threads of one process: every row from whoever holds it, errors with a name, an end."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gids
from gids.cluster import Exchange, Homes
from gids.cluster.homes import bounds
from gids.cluster.messages import (
    Flag,
    Header,
    pack_asks,
    pack_headers,
    read_reply,
    reply_bytes,
    unpack_asks,
    unpack_headers,
    write_reply,
)
from gids.cluster.wire import TorchWire
from gids.errors import ConfigError, PeerError
from gids.storage import RowReader, StorageOptions
from gids.storage.options import FaultOptions
from tests.gids.cluster.memory_wire import Hub

ROWS = 1001


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two tables with odd rows: 7 float16, and 20 float32."""
    path = tmp_path_factory.mktemp("rows") / "graph"
    generator = torch.Generator().manual_seed(3)
    with gids.DatasetWriter(path) as writer:
        writer.add_nodes(ROWS)
        writer.add_features(torch.randn(ROWS, 7, generator=generator).half(), name="small")
        writer.add_features(torch.randn(ROWS, 20, generator=generator), name="feat")
        writer.add_csc(torch.zeros(ROWS + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    dataset = gids.open(path)
    return [dataset.feature_table(None, name) for name in ("small", "feat")]


def test_a_rank_that_dies_before_all_have_met_is_said_so(monkeypatch):
    def gone(*arguments, **options):
        raise RuntimeError("Connection closed by peer")

    found = {"is_initialized": True, "get_rank": 1, "get_world_size": 3, "get_backend": "gloo", "barrier": None}
    for name, value in found.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    monkeypatch.setattr(dist, "new_group", lambda **options: "a group")
    monkeypatch.setattr(dist, "all_gather_object", gone)
    said = r"rank 1 of 3: a rank is gone, or has not made its loader in time \(Connection closed by peer\)"
    wire = TorchWire(5.0)
    with pytest.raises(PeerError, match=said):
        wire.gather("facts")
    for name in ("new_group", "barrier"):
        monkeypatch.setattr(dist, name, gone)
        with pytest.raises(PeerError, match=said):
            TorchWire(5.0)


@contextlib.contextmanager
def ranks(tables, nodes, memory_bytes=1 << 20, timeout_s=20.0, faults=None):
    """Exchanges of all ranks, open; closed together, as programs of all ranks end together."""
    wires = Hub(len(nodes), timeout_s).wires()
    names = [f"rank {rank}" for rank in range(len(nodes))]
    found = []
    for rank, wire in enumerate(wires):
        reading = StorageOptions(fault=(faults or {}).get(rank), queue_depth=8)
        found.append(Exchange(wire, Homes(nodes, rank), tables, reading, memory_bytes, timeout_s, names))
    try:
        yield found
    finally:
        with ThreadPoolExecutor(len(found)) as pool:
            list(pool.map(Exchange.close, found))


def rows_of(table):
    with RowReader(table) as reader:
        return reader.read(torch.arange(table.num_rows))


def read(exchange, table, rows, places=None, out_rows=None):
    with RowReader(table, StorageOptions(queue_depth=8)) as own:
        out = torch.full((out_rows or len(rows), table.dim), -1, dtype=table.torch_dtype)
        exchange.reader(table, own).submit(torch.as_tensor(rows), out, places=places).wait()
        return out


def test_bounds_share_rows_evenly():
    assert bounds(10, 3).tolist() == [0, 3, 6, 10]
    assert bounds(2, 4).tolist() == [0, 0, 1, 1, 2]


def test_homes():
    homes = Homes([0, 0, 1, 1, 2], rank=1)
    assert homes.nodes_of(np.array([0, 32, 33, 65, 66, 99]), 100).tolist() == [0, 0, 1, 1, 2, 2]
    assert (homes.node, homes.num_nodes, list(homes.held(100))) == (0, 3, list(range(33)))
    assert [homes.answers(node) for node in (1, 2)] == [3, 4]  # the second of a node asks the second of the others
    with pytest.raises(ConfigError, match="without a gap"):
        Homes([0, 2], rank=0)


def test_messages():
    header = Header(Flag.BUSY | Flag.LEAVING, 5, 24, True, False)
    assert unpack_headers(pack_headers([header, header])) == [header, header]
    asks = [(1, np.array([7, 8])), (0, np.array([], np.int64)), (2, np.array([3]))]
    assert pack_asks(asks).tolist() == [1, 2, 7, 8, 0, 0, 2, 1, 3]
    assert [(table, rows.tolist()) for table, rows in unpack_asks(pack_asks(asks))] == [(1, [7, 8]), (0, []), (2, [3])]
    assert reply_bytes(14) == 24
    out = torch.zeros(24, dtype=torch.uint8)
    write_reply(out, torch.arange(7, dtype=torch.int16), None)
    values, error, length = read_reply(out, 14)
    assert (values.view(torch.int16).tolist(), error, length) == (list(range(7)), None, 24)
    write_reply(out, None, "disk: no")
    assert read_reply(out, 14) == (None, "disk: no", 16)


@pytest.mark.parametrize("nodes", [[0, 1], [0, 1, 2], [0, 0, 1, 1]], ids=str)
def test_every_rank_gets_every_row(tables, nodes):
    whole = [rows_of(table) for table in tables]
    with ranks(tables, nodes) as exchanges:

        def some(rank):
            generator = np.random.default_rng(rank)
            for turn in range(6):
                number = turn % 2
                rows = generator.integers(0, ROWS, 400 + turn)
                assert torch.equal(read(exchanges[rank], tables[number], rows), whole[number][rows])

        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(some, range(len(nodes))))
        stats = [exchange.stats() for exchange in exchanges]
        assert sum(s["rows_asked"] for s in stats) == sum(s["rows_answered"] for s in stats) > 0
        assert sum(s["bytes_sent"] for s in stats) == sum(s["bytes_received"] for s in stats)


def test_rows_go_to_their_places_and_nowhere_else(tables):
    table, whole = tables[1], rows_of(tables[1])
    with ranks(tables, [0, 1]) as (exchange, _):
        places = np.array([5, 0, 3], np.int32)
        out = read(exchange, table, [900, 3, 1000], places, out_rows=7)
    assert torch.equal(out[[5, 0, 3]], whole[[900, 3, 1000]])
    assert (out[[1, 2, 4, 6]] == -1).all()


def test_one_rank_alone_may_ask(tables):
    """As in a validation that only rank 0 runs: the others answer, whatever they do meanwhile."""
    with ranks(tables, [0, 1, 2]) as exchanges:
        rows = torch.arange(ROWS)
        for _ in range(3):
            assert torch.equal(read(exchanges[2], tables[0], rows), rows_of(tables[0]))
        assert [exchange.stats()["rows_asked"] for exchange in exchanges] == [0, 0, 3 * 667]


def test_a_read_larger_than_the_memory_goes_in_parts(tables):
    table = tables[1]
    with ranks(tables, [0, 1], memory_bytes=4 * 1024) as (exchange, other):
        assert torch.equal(read(exchange, table, torch.arange(ROWS)), rows_of(table))
        values = torch.empty(ROWS, table.dim)
        other.read(table, torch.arange(ROWS), values)
        assert torch.equal(values, rows_of(table))
    with pytest.raises(ConfigError, match="memory of shards must be at least"):
        next(iter(ranks(tables, [0, 1], memory_bytes=64).gen))


def test_an_owner_that_cannot_read_says_so_and_goes_on(tables):
    with ranks(tables, [0, 1], faults={1: FaultOptions(fail_at=0)}) as (exchange, _):
        with pytest.raises(PeerError, match=r"rank 1 could not read rows of .*feat.*errno 5"):
            read(exchange, tables[1], torch.arange(900, 950))
        assert torch.equal(read(exchange, tables[1], torch.arange(900, 950)), rows_of(tables[1])[900:950])


def test_a_rank_that_does_not_answer_ends_the_waiting(tables):
    wire, silent = Hub(2, timeout_s=0.5).wires()
    exchange = Exchange(wire, Homes([0, 1], 0), tables, StorageOptions(), 1 << 20, 0.5, ["rank 0", "rank 1"])
    with pytest.raises(PeerError, match=r"rank 0: a rank is gone or did not answer within 0.5 s \(rank 1\)"):
        read(exchange, tables[0], [1000])
    with pytest.raises(PeerError, match="did not answer"):
        read(exchange, tables[0], [1000])
    exchange.close()
    assert silent.swaps == 0


def test_a_rank_that_leaves_on_an_error_lets_the_others_know(tables):
    with ranks(tables, [0, 1]) as (exchange, other):
        try:
            raise RuntimeError("training went wrong")
        except RuntimeError:
            other.close()
        with pytest.raises(PeerError, match="rank 1 has left: its loader was closed because of an error"):
            read(exchange, tables[0], [1000])


def test_a_rank_that_is_done_answers_until_all_are(tables):
    with ranks(tables, [0, 1]) as (exchange, other):
        early = threading.Thread(target=other.close)
        early.start()
        for _ in range(5):
            assert torch.equal(read(exchange, tables[0], [1000, 0]), rows_of(tables[0])[[1000, 0]])
        assert early.is_alive()
        exchange.close()
        early.join(60)
        assert not early.is_alive()
        with pytest.raises(gids.GidsError):
            read(exchange, tables[0], [1000])


def test_a_cancelled_read_writes_no_more(tables):
    table = tables[1]
    slow = FaultOptions(delay_us=50_000)
    with ranks(tables, [0, 1], faults={1: slow}) as (exchange, _):
        out = torch.full((1, table.dim), -1.0)
        with RowReader(table) as own:
            pending = exchange.reader(table, own).submit(torch.tensor([1000]), out)
            pending.cancel()
            assert torch.equal(
                read(exchange, table, [1000]), rows_of(table)[1000:]
            )  # answers come in order: both are here
        assert (out == -1).all()
