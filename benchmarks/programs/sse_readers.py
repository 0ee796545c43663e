"""Many clients of live events in one cheap process: python sse_readers.py PORT COUNT KEY

Reads and discards what arrives, a few times a second. At the end of its input it prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time

PAUSE_S = 0.25
BUFFER = bytearray(1 << 20)


def main() -> None:
    port, count, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\r\n".encode()
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for stream in streams:
        stream.sendall(request)
    for stream in streams:
        if b" 200 " not in stream.recv(4096):
            sys.exit("a stream was refused")
        stream.setblocking(False)
    print("open", flush=True)
    received, lagging, ended = 0, set[int](), 0
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        for number, stream in enumerate(streams):
            try:
                size = stream.recv_into(BUFFER)
            except BlockingIOError:
                continue
            ended += size == 0
            received += size
            if number not in lagging and BUFFER.find(b"event: lag", 0, size) >= 0:
                lagging.add(number)
    cpu_s = time.process_time()
    print(json.dumps({"bytes": received, "lagging": len(lagging), "ended": ended, "cpu_s": cpu_s, "pid": os.getpid()}))


if __name__ == "__main__":
    main()
