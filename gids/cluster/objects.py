"""Objects below a URL: read, written and waited for so that Ctrl-C and errors end at once; every failure names the object."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from gids.errors import ConfigError, DatasetError

#: Parts that an object may be sent in, by S3's rules, with room to spare; each but the last has at least 5 MiB there.
MOST_PARTS, LEAST_PART_BYTES = 9000, 8 << 20
#: Memory for parts of an object that are on their way at once.
SENDING_BYTES = 512 << 20


class Objects:
    """Objects below a URL; closed with ``with``, which ends what is under way.

    Requests run on a loop of their own: whoever waits for one can be interrupted, and :meth:`close` cancels them.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/prefix``. Credentials and endpoints come from the environment.
    """

    def __init__(self, url: str):
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise ConfigError(f"object storage needs obstore: pip install 'gids[stage]' ({error})") from error
        self.url, self._obstore = url.rstrip("/"), obstore
        made: Any = obstore.store.from_url
        try:
            plain = {"client_options": {"allow_http": True}} if url.startswith("s3") and _plain_endpoint() else {}
            self._store = made(self.url, **plain)
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigError(
                f"url must name object storage, as s3://bucket/name does (got {url!r}: {error})"
            ) from error
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="gids-objects", daemon=True)
        self._thread.start()

    def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return bytes of an object, all of it by default; FileNotFoundError where there is none."""
        if end is None:
            return bytes(self._wait(name, self._whole, name))
        if end <= begin:
            return b""
        return bytes(self._wait(name, self._obstore.get_range_async, self._store, name, start=begin, end=end))

    def required(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return bytes of an object; an object that is not there, or is too short, is an error that names it."""
        try:
            data = self.get(name, begin, end)
        except FileNotFoundError:
            raise DatasetError(f"{self.url}/{name} must be there (there is no such object)") from None
        if end is not None and len(data) != end - begin:
            raise DatasetError(f"{self.url}/{name} must have {end} bytes (it ends at {begin + len(data)})")
        return data

    def size(self, name: str) -> int | None:
        """Return the size of an object; None where there is none."""
        try:
            return int(self._wait(name, self._obstore.head_async, self._store, name)["size"])
        except FileNotFoundError:
            return None

    def put(
        self,
        name: str,
        size_bytes: int,
        read: Callable[[int, int], bytes],
        at_once: int = 1,
        sent: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Send an object that appears when it is whole; large ones in parts side by side.

        Parameters
        ----------
        name : str
            Of the object.
        size_bytes : int
            Of the object.
        read : callable
            Returns the bytes of a range, ``read(begin, end)``.
        at_once : int
            Parts on their way at a time, at most.
        sent : callable
            Called with the bytes that were handed over.
        """
        part = max(LEAST_PART_BYTES, -(-size_bytes // MOST_PARTS))

        async def parts() -> AsyncIterator[bytes]:
            for begin in range(0, size_bytes, part):
                end = min(begin + part, size_bytes)
                yield await asyncio.to_thread(read, begin, end)
                sent(end)

        options: dict[str, Any] = {"use_multipart": False}
        if size_bytes > part:
            options = {"chunk_size": part, "max_concurrency": max(1, min(at_once, SENDING_BYTES // part))}
        body = parts() if size_bytes > part else read(0, size_bytes)
        try:
            self._wait(name, self._obstore.put_async, self._store, name, body, **options)
        except FileNotFoundError as error:
            raise DatasetError(f"{self.url} must be a place that objects can be put in (there is none)") from error
        sent(size_bytes)

    def delete(self, name: str) -> None:
        """Remove an object."""
        self._wait(name, self._obstore.delete_async, self._store, name)

    def close(self) -> None:
        """End requests that are under way: whoever waits for one gets ``CancelledError``."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Objects:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _whole(self, name: str) -> Any:
        found = await self._obstore.get_async(self._store, name)
        return await found.bytes_async()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.close()

    def _wait(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        async def request() -> Any:  # obstore's functions want a loop that runs
            return await function(*arguments, **options)

        with self._named(name):
            return asyncio.run_coroutine_threadsafe(request(), self._loop).result()

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (self._obstore.exceptions.BaseError, OSError) as error:
            # What follows the first lines is the client's own state, for its makers.
            what = str(error).split("\n\nDebug source:")[0]
            raise DatasetError(f"{self.url}/{name} cannot be reached or is damaged: {what}") from error


def _plain_endpoint() -> bool:
    given = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"))
    return any(value.startswith("http://") for value in given)
