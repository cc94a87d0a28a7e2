"""Trajectories as Forebay stores them (forebay/trajectory/codec.cc has the same form in C++)."""

import math
import struct
import sys
from array import array
from dataclasses import dataclass, field
from typing import Dict, List, Sequence, Tuple

__all__ = ["Trajectory", "Turn", "OUTCOMES", "TURN_KINDS", "encode", "decode", "crc32c"]

OUTCOMES = ("done", "truncated_tokens", "truncated_turns", "policy_timeout",
            "env_error", "env_timeout", "engine_error", "aborted", "grader_error")
TURN_KINDS = ("prompt", "action", "observation")

_MAGIC = 0x52544246
_FORMAT = 1
_HEAD = struct.Struct("<IHBB5I2q2iqd2q")
_TURN = struct.Struct("<B2i5q")
_NAME_BYTES_MAX = 1 << 16
_REWARD_MAX = 1e30


@dataclass
class Turn:
    kind: str  # of TURN_KINDS
    begin: int  # token range [begin, end)
    end: int
    # microseconds: queue, prefill, decode, environment, reward
    spans_us: Tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    tool: str = ""  # who answered


@dataclass
class Trajectory:
    """One episode. The three columns have one entry a token; loss_mask is 1 where the policy sampled the token, and
    only there is rollout_logprobs not 0."""

    tokens: Sequence[int]
    loss_mask: Sequence[int]
    rollout_logprobs: Sequence[float]
    versions: Sequence[Tuple[int, int]]  # (policy_version, how many loss tokens), in order
    rewards: Dict[str, float] = field(default_factory=dict)
    group_id: int = 0
    member: int = 0
    attempt: int = 0
    task_id: int = 0
    trajectory_id: int = 0
    environment: str = ""
    turns: List[Turn] = field(default_factory=list)
    outcome: str = "done"  # of OUTCOMES
    temperature: float = 1.0
    started_us: int = 0
    ended_us: int = 0


def _column(code: str, values: Sequence) -> array:
    column = values if isinstance(values, array) and values.typecode == code else array(code, values)
    if sys.byteorder != "little":
        column = array(code, column)
        column.byteswap()
    return column


def _check(t: Trajectory) -> None:
    n = len(t.tokens)
    if len(t.loss_mask) != n or len(t.rollout_logprobs) != n:
        raise ValueError(f"columns differ in length: {n} tokens, {len(t.loss_mask)} of loss_mask, "
                         f"{len(t.rollout_logprobs)} of rollout_logprobs")
    for i, (token, mask, logprob) in enumerate(zip(t.tokens, t.loss_mask, t.rollout_logprobs)):
        if not 0 <= token < 2**31:
            raise ValueError(f"token {i} is {token}")
        if mask not in (0, 1):
            raise ValueError(f"loss_mask of token {i} is {mask}, not 0 or 1")
        if not math.isfinite(logprob) or (not mask and logprob != 0):
            raise ValueError(f"rollout_logprob of token {i} is {logprob}: it must be finite, and 0 where loss_mask is 0")
    if any(count <= 0 or version < 0 for version, count in t.versions):
        raise ValueError("a version run without tokens, or of a negative policy_version")
    if sum(count for _, count in t.versions) != sum(t.loss_mask):
        raise ValueError(f"version runs cover {sum(count for _, count in t.versions)} tokens of "
                         f"{sum(t.loss_mask)} loss tokens")
    last = 0
    for i, turn in enumerate(t.turns):
        if turn.begin < last or turn.end < turn.begin or turn.end > n:
            raise ValueError(f"turn {i} is [{turn.begin}, {turn.end}): turns must be in order, not overlap and end by "
                             f"token {n}")
        if turn.kind not in TURN_KINDS:
            raise ValueError(f"turn {i} has kind {turn.kind!r}, not one of {', '.join(TURN_KINDS)}")
        last = turn.end
    if t.outcome not in OUTCOMES:
        raise ValueError(f"outcome {t.outcome!r}, not one of {', '.join(OUTCOMES)}")
    if not math.isfinite(t.temperature) or t.temperature < 0:
        raise ValueError(f"temperature {t.temperature}")
    for name, value in t.rewards.items():
        if not math.isfinite(value) or abs(value) > _REWARD_MAX:
            raise ValueError(f"reward {name!r} is {value}")
    for name in [t.environment, *t.rewards, *(turn.tool for turn in t.turns)]:
        if len(name.encode()) > _NAME_BYTES_MAX:
            raise ValueError(f"a name is longer than {_NAME_BYTES_MAX} bytes: {name[:40]!r}...")
    if min(t.trajectory_id, t.group_id, t.member, t.attempt) < 0:
        raise ValueError("a negative id")


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw


def encode(t: Trajectory) -> bytes:
    """The trajectory's bytes. ValueError says what does not fit together."""
    _check(t)
    n = len(t.tokens)
    bits = bytearray((n + 7) // 8)
    for i, mask in enumerate(t.loss_mask):
        if mask:
            bits[i // 8] |= 1 << (i % 8)
    logprobs = [p for p, mask in zip(t.rollout_logprobs, t.loss_mask) if mask]
    parts = [
        _HEAD.pack(_MAGIC, _FORMAT, OUTCOMES.index(t.outcome), 0, n, len(logprobs), len(t.versions), len(t.turns),
                   len(t.rewards), t.trajectory_id, t.group_id, t.member, t.attempt, t.task_id, t.temperature,
                   t.started_us, t.ended_us),
        _string(t.environment),
        _column("i", t.tokens).tobytes(),
        bytes(bits),
        _column("f", logprobs).tobytes(),
        _column("q", [version for version, _ in t.versions]).tobytes(),
        _column("i", [count for _, count in t.versions]).tobytes(),
    ]
    for turn in t.turns:
        parts.append(_TURN.pack(TURN_KINDS.index(turn.kind), turn.begin, turn.end, *turn.spans_us))
        parts.append(_string(turn.tool))
    for name in sorted(t.rewards, key=str.encode):
        parts.append(_string(name))
        parts.append(struct.pack("<d", t.rewards[name]))
    return b"".join(parts)


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def raw(self, n: int) -> memoryview:
        if n < 0 or self.at + n > len(self.data):
            raise ValueError("an encoded trajectory that is cut short")
        self.at += n
        return self.data[self.at - n:self.at]

    def unpack(self, form: struct.Struct) -> tuple:
        return form.unpack(self.raw(form.size))

    def string(self) -> str:
        return bytes(self.raw(self.unpack(_U32)[0])).decode("utf-8", "replace")

    def column(self, code: str, count: int) -> array:
        column = array(code)
        column.frombytes(self.raw(count * column.itemsize))
        if sys.byteorder != "little":
            column.byteswap()
        return column


_U32 = struct.Struct("<I")
_F64 = struct.Struct("<d")


def decode(data: "bytes | memoryview") -> Trajectory:
    """The trajectory; ValueError for anything that is not exactly one."""
    reader = _Reader(memoryview(data).cast("B"))
    (magic, form, outcome, zero, tokens, loss_tokens, runs, turns, rewards, trajectory_id, group_id, member, attempt,
     task_id, temperature, started_us, ended_us) = reader.unpack(_HEAD)
    if magic != _MAGIC or form != _FORMAT or zero != 0 or outcome >= len(OUTCOMES):
        raise ValueError("these bytes are no encoded trajectory of format 1")
    environment = reader.string()
    token_column = reader.column("i", tokens)
    bits = reader.raw((tokens + 7) // 8)
    mask = array("B", ((bits[i // 8] >> (i % 8)) & 1 for i in range(tokens)))
    if sum(mask) != loss_tokens:
        raise ValueError("the loss mask does not have as many tokens as counted")
    sampled = iter(reader.column("f", loss_tokens))
    logprobs = array("f", (next(sampled) if m else 0.0 for m in mask))
    versions = list(reader.column("q", runs))
    counts = list(reader.column("i", runs))
    turn_list = []
    for _ in range(turns):
        kind, begin, end, *spans = reader.unpack(_TURN)
        if kind >= len(TURN_KINDS):
            raise ValueError(f"a turn of kind {kind}")
        turn_list.append(Turn(TURN_KINDS[kind], begin, end, tuple(spans), reader.string()))
    reward_map: Dict[str, float] = {}
    for _ in range(rewards):
        name = reader.string()
        reward_map[name] = reader.unpack(_F64)[0]
    if reader.at != len(reader.data):
        raise ValueError(f"{len(reader.data) - reader.at} bytes too many after a trajectory")
    trajectory = Trajectory(
        tokens=token_column, loss_mask=mask, rollout_logprobs=logprobs, versions=list(zip(versions, counts)),
        rewards=reward_map, group_id=group_id, member=member, attempt=attempt, task_id=task_id,
        trajectory_id=trajectory_id, environment=environment, turns=turn_list, outcome=OUTCOMES[outcome],
        temperature=temperature, started_us=started_us, ended_us=ended_us)
    _check(trajectory)
    return trajectory


def _table() -> List[int]:
    out = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
        out.append(i)
    return out


_CRC = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
