"""A server answers many clients with the samples that each would get alone, within its bounds."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from gids.errors import CancelledError, ConfigError, OverloadError
from gids.sampling import EdgeSeeds, NeighborSampler, Relation, SampleKey, Topology, serve, stream_samples


@pytest.fixture
def topology(homogeneous):
    return Topology.from_arrays(*homogeneous)


def same(a, b):
    return torch.equal(a.input_nodes["_N"], b.input_nodes["_N"]) and all(
        torch.equal(x.src[e], y.src[e]) for x, y in zip(a.blocks, b.blocks, strict=True) for e in x.edge_types
    )


class Gate:
    """A graph whose neighbours are read by Python, which waits until the gate is open."""

    def __init__(self):
        self.open, self.entered = opened, entered = threading.Event(), threading.Semaphore(0)

        def read(positions, out):
            entered.release()
            assert opened.wait(30)
            out[:] = 0

        self.topology = Topology({"_N": 2}, {("_N", "_E", "_N"): Relation(np.array([0, 1, 2]), read)})


def test_many_clients_get_their_samples(topology):
    sampler = NeighborSampler([4, 3])
    with serve(sampler, topology, workers=3) as server:

        def ask(number):
            client = server.client()
            for batch in range(40):
                key, seeds = SampleKey(number, 0, batch), torch.tensor([number, batch])
                answers = [client.sample(seeds, key), client.submit(seeds, key).result(timeout=30)]
                assert all(same(answer, sampler.sample(topology, seeds, key)) for answer in answers)
            return client.number

        with ThreadPoolExecutor(6) as threads:
            numbers = list(threads.map(ask, range(6)))
        assert server.served_by_client() == dict.fromkeys(numbers, 80)
        stats = server.stats()
        assert (stats["served"], stats["failed"], stats["waiting"], stats["running"]) == (480, 0, 0, 0)
        assert 0 < stats["p50_us"] <= stats["p99_us"]


def test_a_sample_is_an_ordinary_one_once_somebody_looks(topology):
    with serve(NeighborSampler([4]), topology) as server:
        sample = server.sample([3, 4, 3], SampleKey(1))
        assert sample.seed_rows["_N"].tolist() == [0, 1, 0]
        assert sample.num_edges == sample.blocks[0].num_edges()
        with pytest.raises(AttributeError):
            sample.nonsense  # noqa: B018
        pairs = EdgeSeeds(torch.tensor([1]), torch.tensor([2]), negatives=2)
        assert server.submit(pairs, SampleKey()).result().edges.labels.tolist() == [1, 0, 0]


def test_coroutines(topology):
    sampler = NeighborSampler([4, 3])

    async def ask(server):
        futures = [server.submit([i], SampleKey(batch=i)) for i in range(50)]
        return await asyncio.gather(*futures)

    with serve(sampler, topology, workers=2) as server:
        for _ in range(2):  # a second event loop follows the first
            samples = asyncio.run(ask(server))
            assert all(same(s, sampler.sample(topology, [i], SampleKey(batch=i))) for i, s in enumerate(samples))


def test_what_waits_can_be_cancelled_and_what_runs_cannot():
    gate = Gate()
    with serve(NeighborSampler([1]), gate.topology, workers=1) as server:
        running = server.submit([0], SampleKey())
        gate.entered.acquire()
        waiting = server.submit([0], SampleKey())
        assert not running.cancel()
        assert waiting.cancel()
        assert waiting.cancelled()
        with pytest.raises(CancelledError, match="the request was cancelled"):
            waiting.result()
        with pytest.raises(TimeoutError, match=r"within 0.01 s"):
            running.result(timeout=0.01)
        gate.open.set()
        assert running.result(timeout=30).num_edges == 1
        assert running.exception() is None
        assert running.latency_s >= running.waited_s > 0
        assert server.stats()["cancelled"] == 1


def test_under_overload_the_longest_queue_yields_and_clients_take_turns():
    gate = Gate()
    with serve(NeighborSampler([1]), gate.topology, workers=1, max_waiting=4) as server:
        greedy, modest = server.client(), server.client()
        first = greedy.submit([0], SampleKey())
        gate.entered.acquire()
        many = [greedy.submit([0], SampleKey(batch=i)) for i in range(4)]
        with pytest.raises(OverloadError, match="max_waiting = 4"):
            greedy.submit([0], SampleKey())
        few = [modest.submit([0], SampleKey(batch=i)) for i in range(2)]
        for displaced in many[2:]:
            with pytest.raises(OverloadError, match="make room"):
                displaced.result()
        with pytest.raises(OverloadError):
            modest.submit([0], SampleKey())
        gate.open.set()
        for future in [first, *many[:2], *few]:
            future.result(timeout=30)
        # In turns: the modest client's first request does not wait for the greedy one's second.
        assert few[0].waited_s < many[1].waited_s
        stats = server.stats()
        assert (stats["refused"], stats["displaced"], stats["most_waited"]) == (2, 2, 4)


def test_closing_cancels_what_waits():
    gate = Gate()
    server = serve(NeighborSampler([1]), gate.topology, workers=1)
    running, waiting = server.submit([0], SampleKey()), server.submit([0], SampleKey())
    gate.entered.acquire()
    closing = threading.Thread(target=server.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(timeout=30)
    gate.open.set()
    closing.join(30)
    assert running.result().num_edges == 1
    with pytest.raises(CancelledError, match="closed"):
        server.submit([0], SampleKey())


def test_an_error_reaches_who_asked(topology):
    with serve(NeighborSampler([4]), topology) as server:
        with pytest.raises(ConfigError, match=r"seeds of _N must be in \[0, 300\) \(got 300\)"):
            server.sample([300], SampleKey())
        future = server.submit([300], SampleKey())
        assert isinstance(future.exception(timeout=30), ConfigError)
        assert server.sample([1], SampleKey()).num_edges >= 0
        with pytest.raises(ConfigError, match="workers and max_waiting must be positive"):
            serve(NeighborSampler([4]), topology, workers=0)


@pytest.mark.parametrize("in_flight", [1, 5])
def test_streams_are_in_order_for_any_number_under_way(topology, in_flight):
    sampler = NeighborSampler([4, 3])
    batches = [(torch.tensor([b, 2 * b]), SampleKey(batch=b)) for b in range(30)]
    samples = list(stream_samples(sampler, topology, iter(batches), in_flight=in_flight))
    assert all(same(s, sampler.sample(topology, *batch)) for s, batch in zip(samples, batches, strict=True))
