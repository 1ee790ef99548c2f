"""RESP, the protocol of Redis and Valkey, as far as a lock needs it. Version 2 and 3 alike; standard library only."""

import socket
import threading


class ServerError(Exception):
    """An error reply. `code` is its first word, such as NOSCRIPT."""

    def __init__(self, text):
        super().__init__(text)
        self.code = text.split(" ", 1)[0]


class Push(list):
    """A push of the server. Version 3 marks pushes; in version 2 they look like replies."""


class Connection:
    """One connection. Calls of several threads take turns; pushes wait until `read` fetches them."""

    def __init__(self, host, port, timeout=2.0, user=None, password=None, protocol=2):
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")
        self.turn = threading.Lock()
        if protocol == 3:
            login = ["AUTH", user or "default", password] if password else []
            self.call("HELLO", "3", *login)
        elif password:
            self.call("AUTH", *([user] if user else []), password)

    def send(self, *words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.socket.sendall(b"".join(parts))

    def call(self, *words):
        """Returns the reply. After an exception other than ServerError the connection is useless: close it."""
        with self.turn:
            self.send(*words)
            reply = self.read()
            while isinstance(reply, Push):
                reply = self.read()
        if isinstance(reply, ServerError):
            raise reply
        return reply

    def read(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind in b"-":
            return ServerError(rest.decode())
        if kind in b":(":
            return int(rest)
        if kind == b",":
            return float(rest)
        if kind == b"#":
            return rest == b"t"
        if kind == b"_":
            return None
        count = int(rest)
        if kind in b"$=!":
            return None if count < 0 else self.text(kind, count)
        if kind == b"%":
            return {self.read(): self.read() for _ in range(count)}
        if kind in b"*~>":
            items = None if count < 0 else [self.read() for _ in range(count)]
            return Push(items) if kind == b">" else items
        raise ConnectionError(f"not RESP: {line[:40]!r}")

    def text(self, kind, count):
        body = self.stream.read(count + 2)
        if len(body) != count + 2:
            raise ConnectionError("the server has closed the connection")
        text = body[:-2].decode("utf-8", "surrogateescape")
        return ServerError(text) if kind == b"!" else text

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()
