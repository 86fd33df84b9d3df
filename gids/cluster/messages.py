"""What ranks tell each other in a round: a header of fixed size, ids of rows that are asked for, rows in reply."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_REPLY_HEAD = 8  # bytes before the rows of a reply: 0, or how many bytes of text say what went wrong


class Flag(enum.IntFlag):
    """What a rank says about itself in every header."""

    NONE = 0
    BUSY = 1  # it waits for rows, or reads some for others: the next round should not be put off
    LEAVING = 2  # its loader was closed; it goes on answering until all have closed theirs
    GONE = 4  # this is its last round


@dataclass(frozen=True)
class Header:
    """What one rank announces to another.

    Attributes
    ----------
    flags : Flag
        About the rank.
    asked_words : int
        Words of the ids that follow, to this receiver.
    reply_bytes : int
        Bytes of the rows that follow, to this receiver.
    asks_anyone, replies_anyone : bool
        Whether any receiver gets some: all ranks take part in a collective, or none does.
    """

    flags: Flag
    asked_words: int
    reply_bytes: int
    asks_anyone: bool
    replies_anyone: bool

    WORDS = 5


def pack_headers(headers: Sequence[Header]) -> Tensor:
    """Return headers as one vector of int64, receiver after receiver."""
    words = [(h.flags, h.asked_words, h.reply_bytes, h.asks_anyone, h.replies_anyone) for h in headers]
    return torch.tensor(words, dtype=torch.int64).flatten()


def unpack_headers(words: Tensor) -> list[Header]:
    """Return the headers that every rank sent us."""
    rows = words.reshape(-1, Header.WORDS).tolist()
    return [Header(Flag(f), asked, replied, bool(a), bool(r)) for f, asked, replied, a, r in rows]


def pack_asks(asks: Sequence[tuple[int, NDArray[np.int64]]]) -> NDArray[np.int64]:
    """Return what is asked of one rank, as (table, rows), one after the other."""
    parts: list[NDArray[np.int64]] = []
    for table, rows in asks:
        parts += [np.array([table, len(rows)], np.int64), rows]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def unpack_asks(words: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield what a rank asks of us."""
    begin = 0
    while begin < len(words):
        table, count = int(words[begin]), int(words[begin + 1])
        yield table, words[begin + 2 : begin + 2 + count]
        begin += 2 + count


def reply_bytes(size_bytes: int) -> int:
    """Return how long a reply with so many bytes of rows, or of text, is; rows stay aligned to 8 bytes."""
    return _REPLY_HEAD + -(-size_bytes // 8) * 8


def write_reply(out: Tensor, rows: Tensor | None, error: str | None) -> None:
    """Write a reply into bytes of just its length."""
    text = b"" if error is None else error.encode()
    out[:_REPLY_HEAD].view(torch.int64)[0] = len(text)
    if text:
        out[_REPLY_HEAD : _REPLY_HEAD + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    elif rows is not None and rows.numel():
        out[_REPLY_HEAD : _REPLY_HEAD + rows.nbytes] = rows.view(torch.uint8).flatten()


def read_reply(data: Tensor, size_bytes: int) -> tuple[Tensor | None, str | None, int]:
    """Read the reply that ``data`` begins with, where rows of ``size_bytes`` were asked for.

    Returns the bytes of the rows or what went wrong, and the length of the reply.
    """
    text = int(data[:_REPLY_HEAD].view(torch.int64)[0])
    if text:
        return None, bytes(data[_REPLY_HEAD : _REPLY_HEAD + text].numpy()).decode(), reply_bytes(text)
    return data[_REPLY_HEAD : _REPLY_HEAD + size_bytes], None, reply_bytes(size_bytes)
