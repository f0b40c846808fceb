"""A socket that knows when what it read reached this machine, by the kernel's own note where there is one.

The moment at which a program gets to read is later: by the time in which it was asleep, or busy with other
streams. Linux stamps each packet as it comes in; elsewhere the moment of the read has to do.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

SO_TIMESTAMPNS = 35
"""Linux's number for it, which Python doesn't name."""
_STAMP = struct.Struct("@ll")
_NOTE_BYTES = socket.CMSG_SPACE(_STAMP.size)
_TIGHT_NS = 20_000
MAX_AGE_S = 1.0
"""A stamp older than this is the work of a wall clock that was set, and isn't believed."""


class StampedSocket(socket.socket):
    """`arrived` is when the bytes last read came in, on time.perf_counter()'s clock; it never falls."""

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        super().__init__(family, type, proto, fileno)
        self.arrived = 0.0
        if sys.platform == "linux":
            self.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """As a socket's."""
        data, notes, _, _ = self.recvmsg(bufsize, _NOTE_BYTES, flags)
        self._note(notes)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As a socket's; this is how asyncio reads under TLS."""
        room = memoryview(buffer)[:nbytes] if nbytes else buffer
        size, notes, _, _ = self.recvmsg_into([room], _NOTE_BYTES, flags)
        self._note(notes)
        return size

    def _note(self, notes: Sequence[tuple[int, int, bytes]]) -> None:
        now, wall = _clocks()
        for level, kind, value in notes:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS) and len(value) >= _STAMP.size:
                seconds, nanoseconds = _STAMP.unpack_from(value)
                age = (wall - seconds * 10**9 - nanoseconds) * 1e-9
                if 0 <= age < MAX_AGE_S:
                    now -= age
        self.arrived = max(self.arrived, now)


def _clocks() -> tuple[float, int]:
    """perf_counter (s) and the wall clock (ns) at one moment; read again if we were interrupted between."""
    for _ in range(3):
        before, wall, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        if after - before < _TIGHT_NS:
            break
    return (before + after) * 0.5e-9, wall


async def connect(host: str, port: int) -> StampedSocket:
    """A connection to the first of the host's addresses that answers; an OSError if none does."""
    loop = asyncio.get_running_loop()
    problem: OSError = OSError("the name has no address")
    for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = StampedSocket(family, kind, proto)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            problem = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise problem
