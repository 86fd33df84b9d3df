"""Rows on their way between ranks: questions leave as soon as a batch is planned, owners read, answers come back.

A batch is a function of (seed, epoch, rank, batch), so it is sampled and planned long before it is trained on. What its
plan lacks is asked for at once: the owner has read and sent the rows before they are needed, and no round trip is on the
path of training. A thread of its own keeps talking to the others in *rounds*. In each, every rank takes part in the same
few collectives: headers, then ids and rows where any rank has some. It answers, whatever its training loop does, until
all ranks have closed their loaders.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import ThreadPool, admit_rows
from gids.cluster.homes import Homes
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
from gids.cluster.wire import Wire
from gids.errors import ConfigError, GidsError, PeerError
from gids.ledger import Stopped
from gids.storage import RowReader, StorageOptions
from gids.storage.reader import PendingRead, aligned_empty
from gids.table import RowTable
from gids.tiers.host_buffer import PendingRows, Reader

_T = TypeVar("_T")

#: How long a rank puts off a round that nobody is known to wait for: at first, and once nothing happens.
IDLE_S = (0.001, 0.02)
#: How long one puts it off while it reads rows for others, and how often it looks whether they have come.
READING_S, LOOK_S = 0.002, 0.0002
#: How long a rank that leaves because of an error tries to tell the others.
LEAVE_TIMEOUT_S = 2.0


_EXITING: list[bool] = []  # not empty once the interpreter ends: what it has printed last may be why


@functools.cache
def _notice_exit() -> None:
    atexit.register(_EXITING.append, True)  # registered after the runtime's, so called before it


@dataclass
class _Question:
    """Rows of one table that one rank is asked for."""

    table: int
    rows: NDArray[np.int64]
    places: NDArray[np.int64]  # rows of ``read.out`` that they become
    read: SplitRead


@dataclass
class _Answer:
    """Rows that a rank has asked us for."""

    table: int
    rows: NDArray[np.int64]
    values: Tensor | None = None
    read: PendingRead | None = None
    error: str | None = None
    held_bytes: int = 0  # of the memory for rows that are read

    @property
    def begun(self) -> bool:
        return self.read is not None or self.error is not None

    @property
    def ready(self) -> bool:
        return self.error is not None or (self.read is not None and self.read.done())


class SplitRead:
    """A read of rows that several nodes hold; see :class:`gids.tiers.host_buffer.PendingRows`.

    Attributes
    ----------
    out : Tensor
        Where the rows go.
    """

    def __init__(self, exchange: Exchange, out: Tensor):
        self.out = out
        self._exchange = exchange
        self._own: PendingRows | None = None  # of the rows that our node holds
        self._changed = threading.Condition()
        self._left = 0  # questions without an answer; guarded by _changed
        self._error: GidsError | None = None  # guarded by _changed
        self._cancelled = False  # guarded by _changed

    def expect(self, questions: int) -> None:
        """Take note of questions before they are asked."""
        self._left += questions

    def adopt(self, own: PendingRows) -> None:
        """Take note of the read of our own rows."""
        self._own = own

    def arrived(self, question: _Question, values: Tensor, table: RowTable, pool: ThreadPool) -> None:
        """Put rows to where they belong, unless nobody wants them any more."""
        with self._changed:
            if not self._cancelled:
                out = self.out.view(torch.uint8).flatten().numpy()
                position = np.arange(len(question.rows), dtype=np.int64)
                admit_rows(pool, out, question.places, values.numpy(), position, table.row_bytes)
            self._left -= 1
            self._changed.notify_all()

    def failed(self, error: GidsError) -> None:
        """Let :meth:`wait` raise."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self) -> Tensor:
        """Return ``out`` when every row is in place; raise what went wrong."""
        if self._own is not None:
            self._own.wait()
        with self._changed:
            while self._left and self._error is None and not self._cancelled:
                self._changed.wait(1.0)
                self._error = self._error or self._exchange.silence()
            if self._error is not None:
                raise self._error
            if self._left:
                raise Stopped
        return self.out

    def cancel(self) -> None:
        """Cancel; ``out`` is not written to any more when this returns."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        if self._own is not None:
            self._own.cancel()


class SplitReader:
    """Reads rows of a table that is split over nodes; a :class:`gids.tiers.host_buffer.Reader`.

    Parameters
    ----------
    exchange : Exchange
        Asks the others.
    table : RowTable
        Whose rows.
    own : Reader
        Reads those of our node; closed with this.
    """

    def __init__(self, exchange: Exchange, table: RowTable, own: Reader):
        self.table, self._exchange, self._own = table, exchange, own

    def submit(
        self,
        rows: Tensor,
        out: Tensor,
        places: NDArray[np.int32] | None = None,
    ) -> PendingRows:
        """Begin to read; see :class:`gids.tiers.host_buffer.RowSource`."""
        return self._exchange.submit(self.table, self._own, rows.numpy(), out, places)

    def stats(self) -> Mapping[str, int]:
        """Return what was read from our own drives for ourselves."""
        return self._own.stats()

    def close(self) -> None:
        """Close the reader of our rows; the exchange goes on."""
        self._own.close()


class Exchange:
    """One rank's part in the traffic of rows; see :class:`gids.runtime.peers.Peers`.

    Parameters
    ----------
    wire : Wire
        To the other ranks.
    homes : Homes
        Who holds what.
    tables : sequence of RowTable
        In an order that is the same on all ranks.
    reading : StorageOptions
        How to read what others ask for.
    memory_bytes : int
        A quarter each for reading, for rows read, for those sent and for those received.
    timeout_s : float
        After which silence is an error.
    names : sequence of str
        Of the ranks, for messages.
    """

    def __init__(
        self,
        wire: Wire,
        homes: Homes,
        tables: Sequence[RowTable],
        reading: StorageOptions,
        memory_bytes: int,
        timeout_s: float,
        names: Sequence[str],
    ):
        self._wire, self._homes, self._tables, self._pool = wire, homes, list(tables), _pool()
        self._names, self._timeout_s = names, timeout_s
        self._numbers = {table.name: number for number, table in enumerate(self._tables)}
        self._part_bytes = memory_bytes // 4
        #: No answer is longer, so that those of a round fit into the memory of who gets them, whoever sends them.
        self._answer_bytes = self._part_bytes // max(1, wire.world_size - 1)
        longest = max((reply_bytes(table.row_bytes) for table in self._tables), default=0)
        if longest > self._answer_bytes:
            least = 4 * longest * max(1, wire.world_size - 1)
            raise ConfigError(f"memory of shards must be at least {least} bytes for these tables (got {memory_bytes})")
        staging = max(4 * reading.max_io_bytes, self._part_bytes // max(1, len(self._tables)))
        self._readers: list[RowReader] = []
        self._changed = threading.Condition()
        peers = range(wire.world_size)
        self._unasked: list[deque[_Question]] = [deque() for _ in peers]  # guarded by _changed
        self._asked: list[deque[_Question]] = [deque() for _ in peers]  # sent; of the exchange's thread, but in _fail
        self._answers: list[deque[_Answer]] = [deque() for _ in peers]  # of the exchange's thread
        self._reading_bytes = 0  # of answers begun and not sent; of the exchange's thread
        self._error: PeerError | None = None  # guarded by _changed
        self._leaving = self._gone = False  # guarded by _changed
        self._turn = 0  # whose answer is begun first
        self._idle_s = IDLE_S[0]
        self._last_round = time.monotonic()
        self._stats: dict[str, float] = dict.fromkeys(
            ("rows_asked", "rows_answered", "bytes_received", "bytes_sent", "rounds", "late_s"), 0
        )
        try:
            for table in self._tables:
                self._readers.append(RowReader(table, replace(reading, staging_bytes=staging), self._pool))
        except BaseException:
            self._close_readers()
            raise
        _notice_exit()
        self._thread = threading.Thread(target=self._serve, name="gids-exchange", daemon=True)
        self._thread.start()

    # What the runtime calls, on threads of its own.

    def reader(self, table: RowTable, own: Reader) -> SplitReader:
        """Return a reader of all rows of a table that takes ours from ``own``."""
        return SplitReader(self, table, own)

    def read(self, table: RowTable, rows: Tensor, values: Tensor) -> None:
        """Read rows, wherever they are, and wait for them."""
        own = self._readers[self._numbers[table.name]]
        step = max(1, self._part_bytes // table.row_bytes)  # what is asked for at once has to wait somewhere
        for begin in range(0, len(rows), step):
            self.submit(table, own, rows[begin : begin + step].numpy(), values[begin : begin + step], None).wait()

    def submit(
        self,
        table: RowTable,
        own: Reader,
        rows: NDArray[np.int64],
        out: Tensor,
        places: NDArray[np.int32] | None,
    ) -> PendingRows:
        """Begin to read ``out[places[i]] = row rows[i]``: our rows from ``own``, the others from those who hold them."""
        nodes = self._homes.nodes_of(rows, table.num_rows)
        mine = nodes == self._homes.node
        if mine.all():
            return own.submit(torch.from_numpy(rows), out, places=places)
        if places is None:
            places = np.arange(len(rows), dtype=np.int32)
        number = self._numbers[table.name]
        # Questions first: the others read while we do.
        read = SplitRead(self, out)
        most = max(1, (self._answer_bytes - reply_bytes(0)) // table.row_bytes)
        questions: list[tuple[int, _Question]] = []
        for node in np.unique(nodes[~mine]).tolist():
            peer, here = self._homes.answers(node), np.flatnonzero(nodes == node)
            for begin in range(0, len(here), most):
                part = here[begin : begin + most]
                questions.append((peer, _Question(number, rows[part], places[part].astype(np.int64), read)))
        read.expect(len(questions))
        with self._changed:
            self._check()
            for peer, question in questions:
                self._unasked[peer].append(question)
            self._stats["rows_asked"] += int(len(rows) - mine.sum())
            self._changed.notify_all()
        if mine.any():
            try:
                read.adopt(own.submit(torch.from_numpy(rows[mine]), out, places=places[mine]))
            except BaseException:
                read.cancel()  # the others' rows, which nobody would wait for
                raise
        return read

    def silence(self) -> PeerError | None:
        """Return the error that no round has ended for longer than the transport's own time-out, if so."""
        waited = time.monotonic() - self._last_round
        if self._error is not None or waited < 2 * self._timeout_s + 5:
            return self._error
        return PeerError(f"{self._me}: no other rank has answered for {waited:.0f} s ({self._others})")

    def stats(self) -> Mapping[str, float]:
        """Return rows asked for and answered, bytes received and sent, rounds, and seconds spent in rounds."""
        with self._changed:
            return dict(self._stats)

    def close(self) -> None:
        """Go on answering until all ranks have closed their loaders, or the time is up; on an error leave at once."""
        failing = sys.exc_info()[0] is not None or (bool(_EXITING) and getattr(sys, "last_value", None) is not None)
        with self._changed:
            self._leaving, self._gone = True, self._gone or failing
            self._changed.notify_all()
        if not failing:
            self._thread.join(self._timeout_s)
        if self._thread.is_alive():
            with self._changed:
                self._gone = True
                self._changed.notify_all()
            self._thread.join(LEAVE_TIMEOUT_S)
        if self._thread.is_alive():
            self._wire.abort()
            self._thread.join(LEAVE_TIMEOUT_S)
        self._fail(PeerError(f"{self._me} has left the exchange of rows"))
        self._close_readers()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._leaving:
            raise GidsError("the loader is closed")

    def _close_readers(self) -> None:
        for reader in self._readers:
            reader.close()

    @property
    def _me(self) -> str:
        return self._names[self._wire.rank]

    @property
    def _others(self) -> str:
        return ", ".join(name for rank, name in enumerate(self._names) if rank != self._wire.rank)

    # The exchange's own thread.

    def _serve(self) -> None:
        try:
            while self._round():
                pass
        except PeerError as error:
            self._fail(error)
        except Exception as error:  # of the transport: whatever it is, no rows come from others any more
            what = f"a rank is gone or did not answer within {self._timeout_s:g} s ({self._others})"
            self._fail(PeerError(f"{self._me}: {what}: {type(error).__name__}: {error}"))

    def _fail(self, error: PeerError) -> None:
        with self._changed:
            self._error = self._error or error
            waiting = [question for queue in (*self._unasked, *self._asked) for question in queue]
        for question in waiting:
            question.read.failed(self._error)

    def _round(self) -> bool:
        """Take part in one round; returns whether there is another."""
        asks, replies, flags = self._collect()
        ids = [pack_asks([(question.table, question.rows) for question in questions]) for questions in asks]
        sizes = [[_reply_size(answer, self._tables) for answer in answers] for answers in replies]
        asks_any, replies_any = any(map(len, ids)), any(sizes)
        begin = time.perf_counter()
        headers = self._swap_headers(
            [
                Header(flags, len(words), sum(size), asks_any, replies_any)
                for words, size in zip(ids, sizes, strict=True)
            ]
        )
        for peer, questions in enumerate(asks):
            self._asked[peer].extend(questions)
        if any(header.asks_anyone for header in headers):
            self._swap_ids(ids, headers)
        if any(header.replies_anyone for header in headers):
            self._swap_rows(replies, sizes, headers)
        with self._changed:
            self._stats["rounds"] += 1
            self._stats["late_s"] += time.perf_counter() - begin
        self._last_round = time.monotonic()
        busy = any(header.flags & Flag.BUSY or header.asks_anyone or header.replies_anyone for header in headers)
        self._idle_s = IDLE_S[0] if busy else min(1.5 * self._idle_s, IDLE_S[1])
        # All ranks have seen the same flags, so all of them come to the same end.
        for peer, header in enumerate(headers):
            if header.flags & Flag.GONE and peer != self._wire.rank:
                raise PeerError(f"{self._names[peer]} has left: its loader was closed because of an error")
        if flags & Flag.GONE:
            return False
        return not all(header.flags & Flag.LEAVING for header in headers)

    def _collect(self) -> tuple[list[list[_Question]], list[list[_Answer]], Flag]:
        """Wait until there is reason for a round; return what is asked and answered in it, by rank, and our flags."""
        begin = time.monotonic()
        while True:
            self._begin_answers()
            replies = self._ready_answers()
            with self._changed:
                asks = [list(queue) for queue in self._unasked]
                reading, waiting = any(self._answers), any(self._asked)
                put_off = READING_S if reading else 0.0 if waiting else self._idle_s
                left = put_off - (time.monotonic() - begin)
                if any(asks) or any(replies) or self._gone or left <= 0:
                    for queue in self._unasked:
                        queue.clear()
                    flags = Flag.BUSY if any(asks) or reading or waiting else Flag.NONE
                    flags |= Flag.LEAVING if self._leaving else Flag.NONE
                    flags |= Flag.GONE if self._gone else Flag.NONE
                    return asks, replies, flags
                self._changed.wait(min(left, LOOK_S) if reading else left)

    def _begin_answers(self) -> None:
        """Begin to read what is asked of us, rank by rank, as far as memory goes."""
        world = self._wire.world_size
        begun = True
        while begun:
            begun = False
            for step in range(world):
                peer = (self._turn + step) % world
                answer = next((answer for answer in self._answers[peer] if not answer.begun), None)
                if answer is None:
                    continue
                size = _reply_size(answer, self._tables)
                if self._reading_bytes and self._reading_bytes + size > self._part_bytes:
                    self._turn = peer
                    return
                answer.held_bytes = size
                self._reading_bytes += size
                self._begin(answer)
                begun = True

    def _begin(self, answer: _Answer) -> None:
        table = self._tables[answer.table]
        try:
            answer.values = aligned_empty(len(answer.rows), table.dim, table.torch_dtype)
            answer.read = self._readers[answer.table].submit(answer.rows, answer.values)
        except GidsError as error:
            answer.error = str(error)

    def _ready_answers(self) -> list[list[_Answer]]:
        """Take the answers that have been read, in the order of the questions, as many to a rank as it has room for."""
        taken: list[list[_Answer]] = []
        for queue in self._answers:
            answers: list[_Answer] = []
            size = 0
            while queue and queue[0].ready:
                answer = queue[0]
                try:
                    if answer.read is not None:
                        answer.read.wait()
                except GidsError as error:
                    answer.error = str(error)
                length = _reply_size(answer, self._tables)
                if answers and size + length > self._answer_bytes:
                    break
                queue.popleft()
                self._reading_bytes -= answer.held_bytes
                size += length
                answers.append(answer)
            taken.append(answers)
        return taken

    def _swap_headers(self, headers: list[Header]) -> list[Header]:
        counts = [Header.WORDS] * self._wire.world_size
        return unpack_headers(self._wire.swap(pack_headers(headers), counts, counts))

    def _swap_ids(self, ids: list[NDArray[np.int64]], headers: list[Header]) -> None:
        taken = [header.asked_words for header in headers]
        received = self._wire.swap(torch.from_numpy(np.concatenate(ids)), [len(words) for words in ids], taken)
        for peer, words in enumerate(_pieces(received, taken)):
            for table, rows in unpack_asks(words.numpy()):
                self._answers[peer].append(_Answer(table, rows.copy()))

    def _swap_rows(self, replies: list[list[_Answer]], sizes: list[list[int]], headers: list[Header]) -> None:
        sent = [sum(of_peer) for of_peer in sizes]
        send = torch.empty(sum(sent), dtype=torch.uint8)
        for answer, part in zip(_flat(replies), _pieces(send, list(_flat(sizes))), strict=True):
            write_reply(part, answer.values, answer.error)
            answer.values = None
        taken = [header.reply_bytes for header in headers]
        with self._changed:  # before they are seen elsewhere
            self._stats["rows_answered"] += sum(len(answer.rows) for answer in _flat(replies))
            self._stats["bytes_sent"] += sum(sent)
            self._stats["bytes_received"] += sum(taken)
        received = self._wire.swap(send, sent, taken)
        for peer, data in enumerate(_pieces(received, taken)):
            self._deliver(peer, data)

    def _deliver(self, peer: int, data: Tensor) -> None:
        while len(data):
            question = self._asked[peer].popleft()
            table = self._tables[question.table]
            values, error, length = read_reply(data, len(question.rows) * table.row_bytes)
            if values is None:
                question.read.failed(PeerError(f"{self._names[peer]} could not read rows of {table.name}: {error}"))
            else:
                question.read.arrived(question, values, table, self._pool)
            data = data[length:]


def _pool() -> ThreadPool:
    return ThreadPool(min(4, len(os.sched_getaffinity(0))), "gids-peers")


def _reply_size(answer: _Answer, tables: Sequence[RowTable]) -> int:
    if answer.error is not None:
        return reply_bytes(len(answer.error.encode()))
    return reply_bytes(len(answer.rows) * tables[answer.table].row_bytes)


def _pieces(data: Tensor, lengths: Sequence[int]) -> Iterator[Tensor]:
    begin = 0
    for length in lengths:
        yield data[begin : begin + length]
        begin += length


def _flat(lists: Sequence[Sequence[_T]]) -> Iterator[_T]:
    return (item for items in lists for item in items)
