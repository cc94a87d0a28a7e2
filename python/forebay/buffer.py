"""Talk to a Forebay buffer (`forebay buffer serve`) from your own actors, readers and scripts.

    from forebay.buffer import BufferClient, Trajectory

    with BufferClient("unix:/run/buffer.sock", producer="actor-7") as buffer:
        group = buffer.new_ids(8)
        for member in range(8):
            buffer.append(Trajectory(tokens=[1, 2, 3], loss_mask=[0, 1, 1], rollout_logprobs=[0, -0.1, -0.7],
                                     versions=[(0, 2)], rewards={"correct": 1.0}, group_id=group, member=member))
        with buffer.sample(groups=1) as sample:  # acknowledged at the end, given back if an exception ends it
            for trajectory in sample.trajectories: ...

Standard library only. A client may be shared by threads; each append returns when the buffer has it as durably as it
was configured. After a lost connection the client connects again and sends what was not acknowledged; the buffer stores
each append once. docs/buffer_protocol.md describes what goes over the wire.
"""

import random
import socket
import ssl
import struct
import threading
import time
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from .buffer_codec import OUTCOMES, TURN_KINDS, Trajectory, Turn, crc32c, decode, encode

__all__ = ["BufferClient", "BufferError", "Fenced", "Sample", "Trajectory", "Turn", "OUTCOMES", "TURN_KINDS", "decode",
           "encode"]

_HEADER = struct.Struct("<IBBHQIIII")
_MAGIC = 0x50424246
_VERSION = 1
_HELLO, _WELCOME, _GOODBYE, _PING, _PONG = 1, 2, 3, 4, 5
_DONE, _FAILED, _REPLY = 8, 9, 10
_APPEND, _APPENDED = 16, 17
_TAKE, _ACKNOWLEDGE, _GIVE_BACK = 32, 33, 34
_STATS, _TAIL, _TAIL_RECORDS = 51, 52, 53
_CODES = {1: "invalid_argument", 2: "not_found", 3: "already_exists", 4: "data_loss", 5: "resource_exhausted",
          6: "deadline_exceeded", 7: "unavailable", 8: "cancelled", 9: "failed_precondition", 10: "unimplemented",
          11: "internal"}
_SELECTORS = {"oldest": 0, "uniform": 1, "priority": 2}
_TAKEN = struct.Struct("<2q2i2qfI")
_NUMBERS = ("dispatched trained pending in_flight late rejected_stale rejected_outcome rejected_no_loss_tokens "
            "rejected_lost_in_crash rejected_quarantined rejected_closed ready_groups partial_groups memory_bytes "
            "disk_bytes segments appends flushes duplicates taken_groups expired_takes").split()
_REPLY_BYTES_MAX = 1 << 30


class BufferError(Exception):
    """The buffer refused, or is not there. `code` is one of the protocol's, by name ("deadline_exceeded")."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Fenced(BufferError):
    """This client may not go on: another one has its producer's name, or the server does not let it in."""


def _error(code: int, message: str) -> BufferError:
    name = _CODES.get(code, "internal")
    return (Fenced if code in (9, 10) else BufferError)(name, message)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw


def _frame(kind: int, payload: bytes = b"", table: int = 0, request: int = 0, argument: int = 0, extra: int = 0) -> bytes:
    head = struct.pack("<IBBHQIII", len(payload), kind, 0, table, request, argument, extra, 0)
    return head + struct.pack("<I", crc32c(head)) + payload


def _tls_context(ca_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN if hasattr(ssl, "VERIFY_X509_PARTIAL_CHAIN") \
        else ssl.VerifyFlags(0x80000)
    try:
        context.load_verify_locations(ca_file)
    except OSError as e:  # ssl.SSLError is one
        raise BufferError("invalid_argument", f"ca_file {ca_file!r} is no readable PEM certificate: {e}") from e
    return context


class _Connection:
    """A socket that speaks frames."""

    def __init__(self, address: str, ca_file: Optional[str], server_name: Optional[str], timeout: float) -> None:
        kind, _, rest = address.partition(":")
        if kind == "unix":
            self.socket: socket.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(timeout)
            self.socket.connect(rest)
        elif kind == "tcp" and ":" in rest:
            host, _, port = rest.rpartition(":")
            host = host.strip("[]")
            context = _tls_context(ca_file) if ca_file is not None else None
            self.socket = socket.create_connection((host, int(port)), timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self.socket = context.wrap_socket(self.socket, server_hostname=server_name or host)
        else:
            raise ValueError(f"{address!r} is no address: write unix:/path/to.sock or tcp:host:port")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _exactly(self, n: int) -> bytearray:
        data = bytearray(n)
        view = memoryview(data)
        while n > 0:
            got = self.socket.recv_into(view[-n:], n)
            if got == 0:
                raise ConnectionError("the buffer's server closed the connection")
            n -= got
        return data

    def receive(self) -> Tuple[int, int, int, bytearray]:
        """The next frame: (type, request, argument, payload)."""
        head = bytes(self._exactly(_HEADER.size))
        length, kind, flags, _, request, argument, _, payload_crc, header_crc = _HEADER.unpack(head)
        if crc32c(head[:28]) != header_crc or length > _REPLY_BYTES_MAX:
            raise ConnectionError("the peer does not speak the buffer protocol")
        payload = self._exactly(length)
        if flags & 1 and crc32c(payload) != payload_crc:
            raise ConnectionError("a frame was damaged on its way")
        return kind, request, argument, payload

    def close(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()


class _Pending:
    """A request that waits for its answer."""

    def __init__(self, kind: int, table: int, payload: bytes, deadline: float, told: bool, extra: int) -> None:
        self.kind, self.table, self.payload, self.deadline, self.extra = kind, table, payload, deadline, extra
        self.told = told  # the server hears of the deadline
        self.done = threading.Event()
        self.error: Optional[BaseException] = None
        self.reply: bytearray = bytearray()

    def frame(self, request: int) -> bytes:
        left = max(0, min(0xFFFFFFFF, int((self.deadline - time.monotonic()) * 1000))) if self.told else 0
        return _frame(self.kind, self.payload, self.table, request, left, self.extra)


class Sample:
    """Groups that nobody else has. As a context manager: acknowledged at its end (they never come again), given back
    when an exception ends it."""

    def __init__(self, client: "BufferClient", table: str, take: int, records: List[memoryview]) -> None:
        self._client, self._table, self._take = client, table, take
        self.records = records  # encoded
        self._open = True

    @property
    def trajectories(self) -> List[Trajectory]:
        return [decode(record) for record in self.records]

    def acknowledge(self) -> None:
        self._end(_ACKNOWLEDGE)

    def give_back(self) -> None:
        self._end(_GIVE_BACK)

    def _end(self, kind: int) -> None:
        if self._open:
            self._open = False
            self._client._call(kind, self._table, struct.pack("<q", self._take))

    def __enter__(self) -> "Sample":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(_ACKNOWLEDGE if kind is None else _GIVE_BACK)


class BufferClient:
    def __init__(self, address: str, *, producer: Optional[str] = None, token: Optional[str] = None,
                 ca_file: Optional[str] = None, server_name: Optional[str] = None, timeout: float = 60.0,
                 table: str = "train") -> None:
        """Connects, and registers `producer` (needed to append to tables without a coordinator; whoever registers a
        name last holds it). `timeout` seconds is for each call that gives none, and for connecting again."""
        self._address, self._ca_file, self._server_name = address, ca_file, server_name
        self._producer, self._token, self._timeout, self._default = producer or "", token or "", timeout, table
        self._secret = bytes(16)
        self._tables: Dict[str, Tuple[int, int]] = {}  # name -> (index, record_bytes_max)
        self._lock = threading.Condition()
        self._send_lock = threading.Lock()
        self._pending: Dict[int, _Pending] = {}
        self._outstanding = 0  # bytes of appends
        self._next_request = 1
        self._next_sequence = 0
        self._closed: Optional[BaseException] = None
        self._connected = True
        self.producer_number = 0
        self.epoch = 0
        self._connection = self._connect()
        self._reader = threading.Thread(target=self._read, name="forebay-buffer", daemon=True)
        self._reader.start()

    # ---- what it is for

    def new_ids(self, count: int = 1) -> int:
        """The first of `count` consecutive ids that no other client has, ever: for a group, and for trajectories."""
        if not self.producer_number:
            raise ValueError("ids need a producer: BufferClient(..., producer='a-name')")
        with self._lock:
            first = self._next_sequence
            self._next_sequence += count
        return (self.producer_number << 40) + first

    def append(self, trajectory: Union[Trajectory, bytes], *, table: Optional[str] = None, priority: float = 1.0,
               timeout: Optional[float] = None) -> None:
        """Returns when the buffer has it. A trajectory without an id (0) gets one; bytes are as encode() made them.
        BufferError "deadline_exceeded": it may be stored all the same; appending the same again is safe."""
        self._wait(self._begin_append(trajectory, table, priority, timeout))

    def append_many(self, trajectories: Iterable[Union[Trajectory, bytes]], *, table: Optional[str] = None,
                    priority: float = 1.0, timeout: Optional[float] = None) -> None:
        """As append for each, but without waiting in between: many times faster. The first error is raised at the
        end."""
        pending = [self._begin_append(t, table, priority, timeout) for t in trajectories]
        error = None
        for each in pending:
            try:
                self._wait(each)
            except BufferError as e:
                error = error or e
        if error is not None:
            raise error

    def sample(self, groups: int = 1, *, table: Optional[str] = None, selector: str = "oldest",
               learner_version: int = 0, expires_after: float = 60.0, timeout: Optional[float] = None) -> Sample:
        """Waits for that many whole groups. They are this caller's until acknowledged, given back, or expired."""
        # Refused here: the server would hang up.
        if not (1 <= groups <= 1 << 20 and 0 <= learner_version < 1 << 63 and 0.001 <= expires_after <= 86400):
            raise ValueError("a sample wants 1 to 2^20 groups, a learner_version of 0 or more and an expiry of 1 ms to one "
                             f"day, not {groups}, {learner_version} and {expires_after} s")
        if selector not in _SELECTORS:
            raise ValueError(f"selector {selector!r}: one of {', '.join(_SELECTORS)}")
        payload = struct.pack("<3qB", groups, learner_version, int(expires_after * 1000), _SELECTORS[selector])
        name = table or self._default
        reply = memoryview(self._call(_TAKE, name, payload, timeout, told=True))
        take, count = struct.unpack_from("<qI", reply)
        at = 16 + count * _TAKEN.size
        records = []
        for i in range(count):
            length = _TAKEN.unpack_from(reply, 16 + i * _TAKEN.size)[-1]
            records.append(reply[at:at + length])
            at += length
        return Sample(self, name, take, records)

    def tail(self, *, table: Optional[str] = None,
             on_skipped: Optional[Callable[[int], None]] = None) -> Iterator[Trajectory]:
        """Trajectories as they are acknowledged, from now on, without consuming them: to look at. Uses a connection of
        its own; ends when that is lost. A reader that is slow misses some: `on_skipped` gets how many so far."""
        connection = self._connect(registers=False)
        try:
            connection.send(_frame(_TAIL, table=self._table(table)[0], request=1))
            seen = 0
            while True:
                kind, _, argument, payload = connection.receive()
                if kind == _PING:
                    connection.send(_frame(_PONG))
                elif kind in (_FAILED, _GOODBYE):
                    raise _error(argument, payload.decode("utf-8", "replace"))
                elif kind == _TAIL_RECORDS:
                    skipped = struct.unpack_from("<Q", payload)[0]
                    if skipped != seen and on_skipped is not None:
                        on_skipped(skipped)
                    seen = skipped
                    yield decode(memoryview(payload)[8:])
        except (ConnectionError, OSError):
            return
        finally:
            connection.close()

    def stats(self, *, table: Optional[str] = None) -> Dict[str, float]:
        """The table's ledger and counters."""
        reply = self._call(_STATS, table or self._default, b"")
        values = struct.unpack(f"<{len(_NUMBERS)}qd", reply)
        return dict(zip([*_NUMBERS, "append_wait_seconds"], values))

    @property
    def tables(self) -> List[str]:
        return list(self._tables)

    def close(self) -> None:
        """Ends the connection; what was not acknowledged fails. Idempotent."""
        self._fail_all(BufferError("cancelled", "the client was closed"))
        self._connection.close()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def __enter__(self) -> "BufferClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- requests

    def _table(self, name: Optional[str]) -> Tuple[int, int]:
        name = name or self._default
        if name not in self._tables:
            raise BufferError("not_found", f"the server has no table {name!r}; it has: {', '.join(self._tables)}")
        return self._tables[name]

    def _begin_append(self, trajectory: Union[Trajectory, bytes], table: Optional[str], priority: float,
                      timeout: Optional[float]) -> _Pending:
        if isinstance(trajectory, Trajectory):
            if trajectory.trajectory_id == 0 and self.producer_number:
                trajectory.trajectory_id = self.new_ids()
            trajectory = encode(trajectory)
        index, bytes_max = self._table(table)
        if len(trajectory) > bytes_max:
            raise BufferError("invalid_argument", f"a record of {len(trajectory)} bytes, the table takes {bytes_max}")
        extra = struct.unpack("<I", struct.pack("<f", priority))[0]
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        pending = _Pending(_APPEND, index, bytes(trajectory), deadline, True, extra)
        with self._lock:
            while self._outstanding and self._outstanding + len(pending.payload) > self._credit:
                left = deadline - time.monotonic()
                if self._closed is not None or left <= 0:
                    break
                self._lock.wait(left)
            self._outstanding += len(pending.payload)
        self._send(pending)
        return pending

    def _call(self, kind: int, table: str, payload: bytes, timeout: Optional[float] = None,
              told: bool = False) -> bytearray:
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        pending = _Pending(kind, self._table(table)[0], payload, deadline, told, 0)
        self._send(pending)
        self._wait(pending)
        return pending.reply

    def _send(self, pending: _Pending) -> None:
        with self._lock:
            if self._closed is not None:
                raise self._closed
            request = self._next_request
            self._next_request += 1
            self._pending[request] = pending
            connected, connection = self._connected, self._connection
        if connected:  # else it is sent when there is a connection again
            self._transmit(connection, pending.frame(request))

    def _transmit(self, connection: _Connection, data: bytes) -> None:
        try:
            with self._send_lock:
                connection.send(data)
        except OSError:
            connection.close()  # the reader sees it

    def _wait(self, pending: _Pending) -> None:
        # The server's own answer comes a little after the deadline.
        if not pending.done.wait(max(0.0, pending.deadline - time.monotonic()) + 0.5):
            raise BufferError("deadline_exceeded", "the buffer's server did not answer in time" if self._connected else
                              f"the connection to the buffer at {self._address} was lost, and it cannot be reached again")
        if pending.error is not None:
            raise pending.error

    # ---- the reader

    def _connect(self, registers: bool = True) -> _Connection:
        try:
            connection = _Connection(self._address, self._ca_file, self._server_name, min(10.0, self._timeout))
        except OSError as e:
            raise BufferError("unavailable", f"cannot reach the buffer at {self._address}: {e}") from e
        try:
            producer = self._producer if registers else ""
            secret = self._secret if registers else bytes(16)
            connection.send(_frame(_HELLO, struct.pack("<IHH", _MAGIC, _VERSION, _VERSION) + _string(self._token) +
                                   _string(producer) + secret))
            kind, _, argument, payload = connection.receive()
            if kind == _GOODBYE:
                raise _error(argument, f"{self._address}: {payload.decode('utf-8', 'replace')}")
            if kind != _WELCOME:
                raise ConnectionError("no welcome")
            connection.socket.settimeout(None)
            if registers:
                self._welcome(payload)
            return connection
        except (OSError, struct.error) as e:
            connection.close()
            hint = "; if it speaks TLS, give ca_file" if self._ca_file is None and self._address.startswith("tcp:") else ""
            raise BufferError("unavailable", f"no welcome from {self._address}: {e}{hint}") from e
        except BaseException:
            connection.close()
            raise

    def _welcome(self, payload: bytearray) -> None:
        _, _, count, self._credit, _, _, self.producer_number, self.epoch = struct.unpack_from("<IHHQIIqq", payload)
        self._secret = bytes(payload[40:56])
        at = 56
        for index in range(count):
            length = struct.unpack_from("<I", payload, at)[0]
            name = payload[at + 4:at + 4 + length].decode()
            at += 4 + length
            _, _, bytes_max = struct.unpack_from("<BiI", payload, at)
            at += 9
            self._tables[name] = (index, bytes_max)

    def _read(self) -> None:
        while self._closed is None:
            try:
                kind, request, argument, payload = self._connection.receive()
                self._on_frame(kind, request, argument, payload)
            except (OSError, ValueError) as e:  # ConnectionError and ssl.SSLError are OSErrors
                self._connection.close()
                if self._closed is None:
                    self._reconnect(e)

    def _on_frame(self, kind: int, request: int, argument: int, payload: bytearray) -> None:
        if kind == _APPENDED:
            for (each,) in struct.iter_unpack("<Q", payload):
                self._finish(each, None, bytearray())
        elif kind == _FAILED:
            self._finish(request, _error(argument, payload.decode("utf-8", "replace")), bytearray())
        elif kind in (_DONE, _REPLY):
            self._finish(request, None, payload)
        elif kind == _PING:
            self._transmit(self._connection, _frame(_PONG))
        elif kind == _GOODBYE:
            error = _error(argument, payload.decode("utf-8", "replace"))
            if isinstance(error, Fenced):
                self._fail_all(error)
            raise ConnectionError(str(error))

    def _finish(self, request: int, error: Optional[BaseException], reply: bytearray) -> None:
        with self._lock:
            pending = self._pending.pop(request, None)
            if pending is None:
                return
            if pending.kind == _APPEND:
                self._outstanding -= len(pending.payload)
                self._lock.notify_all()
        pending.error, pending.reply = error, reply
        pending.done.set()

    def _fail_all(self, error: BaseException, appends: bool = True, closing: bool = True) -> None:
        with self._lock:
            if closing and self._closed is None:
                self._closed = error
            failed = [r for r, p in self._pending.items() if appends or p.kind != _APPEND]
        for request in failed:
            self._finish(request, error, bytearray())
        with self._lock:
            self._lock.notify_all()

    def _reconnect(self, why: Exception) -> None:
        with self._lock:
            self._connected = False
        # Only appends can be repeated without thought: the buffer knows the ones that it has.
        self._fail_all(BufferError("unavailable", f"the connection was lost: {why}"), appends=False, closing=False)
        deadline = time.monotonic() + self._timeout
        backoff = 0.01
        while self._closed is None:
            try:
                connection = self._connect()
                break
            except Fenced as e:
                self._fail_all(e)
                return
            except BufferError as e:
                if time.monotonic() > deadline:
                    self._fail_all(e, closing=False)
                time.sleep(backoff * (0.5 + random.random()))
                backoff = min(1.0, 2 * backoff)
        else:
            return
        with self._lock:
            self._connection = connection
            self._connected = True
            again = sorted(self._pending.items())
        for request, pending in again:
            self._transmit(connection, pending.frame(request))
