"""A TCP proxy that passes on requests at once and each reply DELAY_MS later: a server that is further away.

    python -m benchmarks.latency_proxy PORT TARGET_PORT DELAY_MS

Each piece of a reply waits by itself, so that the bandwidth stays what it was.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import time

HOST = "127.0.0.1"
CHUNK = 1 << 16


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Copies until the end of `reader`, in order, each piece `delay_s` after it arrived."""
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def send() -> None:
        while True:
            due_s, piece = await pieces.get()
            if (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        writer.close()

    sender = asyncio.create_task(send())
    try:
        while piece := await reader.read(CHUNK):
            pieces.put_nowait((loop.time() + delay_s, piece))
    except ConnectionError:
        pass
    pieces.put_nowait((0.0, b""))
    await asyncio.gather(sender, return_exceptions=True)


async def serve(port: int, target_port: int, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(HOST, target_port)
        await asyncio.gather(_pass_on(reader, target_writer, 0.0), _pass_on(target_reader, writer, delay_s))

    server = await asyncio.start_server(connected, HOST, port)
    async with server:
        await server.serve_forever()


def wait_listening(port: int, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((HOST, port)).close()
            return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)


if __name__ == "__main__":
    # epoll waits in whole milliseconds, select in microseconds.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
