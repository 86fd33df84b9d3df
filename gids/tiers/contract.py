"""What the pipeline and a table's store owe each other: three calls, and a ticket that carries a group's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from gids.ledger import Account
from gids.tiers.host_buffer import HostBuffer
from gids.tiers.plan import Counters

Ids = TypeVar("Ids")
Rows = TypeVar("Rows", covariant=True)


class Ticket(Protocol):
    """A group of batches of one table on its way: planned → begun → under way → gathered, or cancelled.

    What the group holds goes back with its last batch, when it is cancelled, or when its store is reset.
    """

    @property
    def counters(self) -> Counters:
        """Rows of the whole group by source, as planned."""

    @property
    def counted_late(self) -> bool:
        """Whether a device counts the rows, so that :attr:`counters` wait for it; better asked for one group later."""

    def batch_counters(self, batch: int) -> Counters:
        """Rows of one batch by source, as they were served; known once it is gathered."""

    @property
    def fits(self) -> bool:
        """Whether the group may begin beside those before it, so that none of them will wait for room."""

    @property
    def underway(self) -> bool:
        """Whether every read of the group has begun, or begins without another :meth:`Store.advance`."""

    def begin(self) -> None:
        """Let the group take part in the store's next :meth:`Store.advance`; takes no memory for rows yet."""

    def cancel(self) -> None:
        """Read no more; gathering from the group fails from now on. From any thread; returns when nothing is written."""


TicketT = TypeVar("TicketT", bound=Ticket)


class Store(Protocol[Ids, TicketT, Rows]):
    """Rows of one table, through cache, host buffer and disk.

    One thread plans and advances while another gathers. Tickets are begun and gathered in the order in which they were
    planned, a ticket's batches in their order; anything else is an error. After a run that did not gather all it had
    planned, :meth:`reset` must be called before the next plan.
    """

    @property
    def group_account(self) -> Account:
        """Memory for the rows of all groups under way; stopping it wakes an :meth:`advance` that waits for some."""

    def plan(self, batches: list[Ids], lookahead: list[Ids]) -> TicketT:
        """Decide where every row of a group comes from, knowing the batches that follow; moves no bytes."""

    @property
    def has_room(self) -> bool:
        """Whether :meth:`advance` would not wait for memory."""

    def advance(self) -> None:
        """Begin the next reads of the groups that have begun; they wait until the group account has memory for them.

        Either this call waits, or the first :meth:`gather` of the group does; both raise ``Stopped`` if the account is
        stopped meanwhile.
        """

    def gather(self, ticket: TicketT, batch: int) -> Rows:
        """Return the rows of one batch of a group; waits for the disk, raises what went wrong there."""

    def add_host_buffer(self, host: HostBuffer) -> None:
        """Let constant rows serve the groups planned from now on; those under way go on as they were planned.

        Of a store that has neither a host buffer, whose rows could not change, nor a cache, which would go on holding the
        same rows.
        """

    def reset(self) -> None:
        """Forget what was planned and cached."""

    def counts(self) -> Mapping[str, int]:
        """Return rows by source, reads, and bytes read and delivered so far."""

    def close(self) -> None:
        """Release files and memory."""


def fetch_now(store: Store[Ids, TicketT, Rows], rows: Ids) -> Rows:
    """Return the rows of one batch that nobody planned ahead."""
    ticket = store.plan([rows], [])
    ticket.begin()
    while not ticket.underway:
        store.advance()
    return store.gather(ticket, 0)
