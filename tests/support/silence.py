"""A proxy whose connections can fall silent, or be spoken on behind their client's back."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from support.proxy import Proxy


class SilentProxy(Proxy):
    """Keeps every connection that passes through it."""

    def __init__(self, url: str) -> None:
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self._silenced: set[socket.socket] = set()
        super().__init__(url)

    @property
    def opened(self) -> int:
        """How many connections there have been."""
        return len(self._links)

    def fall_silent(self) -> None:
        """Forward nothing more on the connections that there are; neither end notices."""
        for link in self._links:
            self._silenced.update(link)

    def say(self, statement: str) -> None:
        """Have the server run this on the first connection, which gets the answer."""
        text = statement.encode() + b"\0"
        self._links[0][1].sendall(b"Q" + struct.pack("!i", 4 + len(text)) + text)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            self._links.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._silenced:
                    sink.sendall(data)
            if source not in self._silenced:
                sink.shutdown(socket.SHUT_WR)
