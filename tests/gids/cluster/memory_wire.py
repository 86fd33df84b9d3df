"""Ranks as threads of one process: a wire in memory, to see the exchange without processes and sockets."""

import threading

import torch


class Hub:
    """Where the ranks of one test meet."""

    def __init__(self, world_size, timeout_s=20.0):
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size, timeout=timeout_s)
        self.sent = [None] * world_size

    def wires(self):
        return [MemoryWire(self, rank) for rank in range(self.world_size)]


class MemoryWire:
    """See :class:`gids.cluster.wire.Wire`; a rank that is ``cut`` never comes to the next collective."""

    def __init__(self, hub, rank):
        self.hub, self.rank, self.world_size = hub, rank, hub.world_size
        self.swaps = 0

    def swap(self, send, sent, taken):
        assert len(sent) == len(taken) == self.world_size
        assert sum(sent) == len(send)
        self.hub.sent[self.rank] = list(send.clone().split(list(sent)))
        self.hub.barrier.wait()
        received = [self.hub.sent[peer][self.rank] for peer in range(self.world_size)]
        assert [len(part) for part in received] == list(taken)  # what one expects is what the other sends
        self.hub.barrier.wait()
        self.swaps += 1
        return torch.cat(received)

    def abort(self):
        self.hub.barrier.abort()
