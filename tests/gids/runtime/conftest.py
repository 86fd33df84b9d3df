"""Stores over a tensor in memory that keep the contract of gids.tiers.contract, record what they were asked, and fail where told."""

import threading
from dataclasses import dataclass, field

import torch

from gids.ledger import Account
from gids.runtime import Pipeline, Tiers
from gids.tiers import AccessModel, Accumulator, Counters
from gids.types import TableKey

FEAT = TableKey("_N", "feat")
ROW_BYTES = 8


class MemoryTicket:
    counted_late = False

    def __init__(self, store, batches):
        self.store, self.batches = store, batches
        self.steps_left = store.rotation
        self.begun = False
        self.cancelled = threading.Event()
        requests = sum(map(len, batches))
        self.counters = Counters(requests=requests, disk=requests)

    @property
    def fits(self):
        return len(self.store.unread()) < self.store.rotation

    @property
    def underway(self):
        return self.begun and not self.steps_left

    @property
    def nbytes(self):
        return self.counters.requests * ROW_BYTES

    def batch_counters(self, batch):
        return Counters(requests=len(self.batches[batch]), disk=len(self.batches[batch]))

    def begin(self):
        self.begun = True
        self.store.tickets.append(self)
        self.store.most_at_once = max(self.store.most_at_once, len(self.store.unread()))

    def cancel(self):
        self.cancelled.set()


@dataclass
class MemoryStore:
    """A Store over a tensor."""

    table: torch.Tensor
    delay_s: float = 0.0
    fail_at_group: int = -1
    group_bytes: int = 1 << 30
    rotation: int = 1
    groups: list = field(default_factory=list)
    lookaheads: list = field(default_factory=list)
    tickets: list = field(default_factory=list)
    resets: int = 0
    closed: int = 0
    under_way: int = 0
    most_under_way: int = 0
    most_at_once: int = 0

    def __post_init__(self):
        self.group_account = Account("groups", self.group_bytes)

    def unread(self):
        return [ticket for ticket in self.tickets if ticket.steps_left]

    def plan(self, batches, lookahead):
        self.groups.append(len(batches))
        self.lookaheads.append(len(lookahead))
        return MemoryTicket(self, batches)

    @property
    def has_room(self):
        return self.group_account.has_room(sum(t.nbytes for t in self.tickets if t.steps_left == self.rotation))

    def advance(self):
        starting = [ticket for ticket in self.tickets if ticket.steps_left == self.rotation]
        self.group_account.draw(sum(ticket.nbytes for ticket in starting))
        self.under_way += len(starting)
        self.most_under_way = max(self.most_under_way, self.under_way)
        for ticket in self.tickets:
            ticket.steps_left = max(0, ticket.steps_left - 1)

    def gather(self, ticket, batch):
        if ticket.cancelled.wait(self.delay_s):
            raise OSError("cancelled")
        if len(self.groups) > self.fail_at_group >= 0 and ticket is self.tickets[self.fail_at_group]:
            raise OSError("the disk is broken")
        assert ticket.underway, "nothing is gathered before its reads have begun"
        if batch == len(ticket.batches) - 1:
            self.under_way -= 1
            self.group_account.give(ticket.nbytes)
        return self.table[ticket.batches[batch]]

    def reset(self):
        self.resets += 1
        self.group_account.give(self.group_account.used)

    def counts(self):
        return {}

    def close(self):
        self.closed += 1


def groups_of(batches, keys=(FEAT,)):
    """An accumulator that takes as many batches as it may."""
    insatiable = AccessModel(peak_iops=1e9, overhead_s=1.0)
    return Accumulator(insatiable, dict.fromkeys(keys, (ROW_BYTES, None)), max_batches=batches)


def pipeline(stores, *, window=16, group=8, samples=None, sample_workers=1, in_order=True, **more):
    """A pipeline over stores; one store is the table FEAT."""
    stores = stores if isinstance(stores, dict) else {FEAT: stores}
    tiers = Tiers(stores, groups_of(group, stores), window=window, group_batches=group, **more)
    return Pipeline(tiers, samples=samples, sample_workers=sample_workers, in_order=in_order)
