"""A connection to the API server that tests can break: a relay of TCP connections."""

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable


class BreakableConnection:
    """Relays a port, of the loopback and free if no `listen` says another, to `target`. TLS passes through unread.

    Attributes:
        port: where clients connect.
    """

    def __init__(self, target: tuple[str, int], listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = target
        self._writers: set[StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, *listen), self._loop
        ).result()
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.thaw()

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        self._call(self._abort)

    def freeze(self) -> None:
        """Connections stay open, and nothing passes: the other side seems to hang."""
        self._call(self._flowing.clear)

    def thaw(self) -> None:
        """Pass on the data that waited."""
        self._call(self._flowing.set)

    def close(self) -> None:
        """Reset every connection, and accept no more."""
        self.thaw()
        self._call(self._server.close)
        self._call(self._abort)
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _ended(self) -> None:
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, back}
        self._writers |= both
        try:
            await asyncio.gather(self._relay(reader, back), self._relay(there, writer))
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _relay(self, source: StreamReader, sink: StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            sink.transport.abort()
        sink.close()
