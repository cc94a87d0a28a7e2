"""Goal: trajectories keep every bit on the way to a buffer and back, and a client meets a server's refusals as errors.

The tests against a server run where FOREBAY_BUFFER_ADDRESS names one (forebay/buffer/service/python_client_test.cc starts
one and runs this file); the others always.
"""

import math
import os
import threading
import unittest
from typing import Any

from forebay.buffer import BufferClient, BufferError, Fenced, Trajectory, Turn, decode, encode
from forebay.buffer_codec import crc32c

ADDRESS = os.environ.get("FOREBAY_BUFFER_ADDRESS", "")


def trajectory(**more: Any) -> Trajectory:
    values = dict(tokens=[5, 6, 7, 8], loss_mask=[0, 1, 1, 0], rollout_logprobs=[0.0, -0.5, -0.25, 0.0],
                  versions=[(3, 1), (4, 1)], rewards={"correct": 1.0, "brevity": -0.5}, group_id=9, member=2, attempt=1,
                  task_id=77, trajectory_id=11, environment="maths", outcome="truncated_turns", temperature=0.7,
                  turns=[Turn("prompt", 0, 1), Turn("action", 1, 3, (1, 2, 3, 4, 5), "checker"), Turn("observation", 3, 4)],
                  started_us=123, ended_us=456)
    values.update(more)
    return Trajectory(**values)


class CodecTest(unittest.TestCase):
    def test_round_trip(self) -> None:
        raw = encode(trajectory())
        back = decode(raw)
        self.assertEqual(encode(back), raw)
        self.assertEqual(list(back.tokens), [5, 6, 7, 8])
        self.assertEqual(back.turns[1], Turn("action", 1, 3, (1, 2, 3, 4, 5), "checker"))
        self.assertEqual(back.rewards, {"brevity": -0.5, "correct": 1.0})
        self.assertEqual(back.versions, [(3, 1), (4, 1)])
        self.assertEqual((back.outcome, back.temperature, back.environment), ("truncated_turns", 0.7, "maths"))

    def test_what_does_not_fit_together(self) -> None:
        for wrong in (dict(loss_mask=[0, 1]), dict(tokens=[5, -6, 7, 8]), dict(versions=[(3, 1)]),
                      dict(loss_mask=[0, 2, 1, 0]), dict(rollout_logprobs=[-1.0, -0.5, -0.2, 0.0]),
                      dict(rollout_logprobs=[0.0, math.nan, 0.0, 0.0]), dict(outcome="fine"),
                      dict(turns=[Turn("prompt", 2, 1)]), dict(turns=[Turn("prompt", 0, 5)]),
                      dict(rewards={"a": math.inf}), dict(group_id=-1), dict(temperature=-1.0)):
            with self.assertRaises(ValueError, msg=str(wrong)):
                encode(trajectory(**wrong))

    def test_no_prefix_passes(self) -> None:
        raw = encode(trajectory())
        for n in range(len(raw)):
            with self.assertRaises(ValueError, msg=str(n)):
                decode(raw[:n])
        with self.assertRaises(ValueError):
            decode(raw + b"\0")

    def test_checksum(self) -> None:
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)


class AddressTest(unittest.TestCase):
    def test_nobody_there(self) -> None:
        with self.assertRaises(BufferError) as caught:
            BufferClient("unix:/nowhere/at/all.sock")
        self.assertEqual(caught.exception.code, "unavailable")
        self.assertIn("/nowhere/at/all.sock", str(caught.exception))
        with self.assertRaises(ValueError):
            BufferClient("/nowhere/at/all.sock")
        # A certificate that is not there is no server that is not there.
        with self.assertRaises(BufferError) as caught:
            BufferClient("tcp:127.0.0.1:1", ca_file="/nowhere/ca.pem")
        self.assertEqual(caught.exception.code, "invalid_argument")
        self.assertIn("/nowhere/ca.pem", str(caught.exception))


@unittest.skipUnless(ADDRESS, "FOREBAY_BUFFER_ADDRESS names no server")
class ClientTest(unittest.TestCase):
    """In the order of their names, on one server: "train" (groups of 2) and "eval" (a coordinator's ids)."""

    def connect(self, **more: Any) -> BufferClient:
        values = dict(producer="python", timeout=20.0, ca_file=os.environ.get("FOREBAY_BUFFER_CA"),
                      token=os.environ.get("FOREBAY_BUFFER_TOKEN"))
        values.update(more)
        client = BufferClient(ADDRESS, **values)
        self.addCleanup(client.close)
        return client

    def test_1_append_and_sample(self) -> None:
        client = self.connect()
        self.assertEqual(client.tables, ["eval", "train"])
        group = client.new_ids()
        sent = [trajectory(group_id=group, member=member, trajectory_id=0) for member in range(2)]
        for each in sent:
            client.append(each)
        with client.sample() as sample:
            got = sample.trajectories
        self.assertEqual([encode(t) for t in got], [encode(t) for t in sent])
        stats = client.stats()
        self.assertEqual((stats["dispatched"], stats["trained"]), (2, 2))
        with self.assertRaises(BufferError) as caught:
            client.sample(timeout=0.05)
        self.assertEqual(caught.exception.code, "deadline_exceeded")

    def test_2_an_exception_gives_back(self) -> None:
        client = self.connect()
        group = client.new_ids()
        client.append_many([trajectory(group_id=group, member=member, trajectory_id=0) for member in range(2)])
        with self.assertRaises(KeyError):
            with client.sample():
                raise KeyError("the reader's own")
        with client.sample() as sample:
            self.assertEqual(sample.trajectories[0].group_id, group)

    def test_3_many_threads_and_repeats(self) -> None:
        client = self.connect()
        before = client.stats()["dispatched"]

        def work() -> None:
            for _ in range(20):
                group = client.new_ids()
                for member in range(2):
                    one = trajectory(group_id=group, member=member, trajectory_id=0)
                    client.append(one)
                    client.append(one)  # stored once

        threads = [threading.Thread(target=work) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(client.stats()["dispatched"] - before, 200)
        self.assertEqual(client.stats()["duplicates"], 200)
        with client.sample(groups=100) as sample:
            self.assertEqual(len({t.trajectory_id for t in sample.trajectories}), 200)

    def test_4_large_records(self) -> None:
        client = self.connect()
        n = 500_000
        group = client.new_ids()
        big = Trajectory(tokens=range(n), loss_mask=[0] * n, rollout_logprobs=[0.0] * n, versions=[], group_id=group)
        client.append(big)
        client.append(trajectory(group_id=group, member=1, trajectory_id=0))
        with client.sample() as sample:
            self.assertEqual(len(sample.trajectories[0].tokens), n)

    def test_5_tail(self) -> None:
        client = self.connect()
        tail = client.tail(table="eval")
        found = []
        reader = threading.Thread(target=lambda: found.append(next(tail)))
        reader.start()
        for i in range(2000):  # the tail begins when the server has heard of it
            client.append(trajectory(trajectory_id=i + 1, group_id=i), table="eval")
            reader.join(0.01)
            if not reader.is_alive():
                break
        self.assertEqual(found[0].task_id, 77)
        tail.close()

    def test_6_refusals(self) -> None:
        client = self.connect()
        with self.assertRaises(BufferError) as caught:
            client.append(trajectory(trajectory_id=5))
        self.assertEqual(caught.exception.code, "invalid_argument")
        with self.assertRaises(BufferError) as caught:
            client.append(b"garbage")
        self.assertEqual(caught.exception.code, "data_loss")
        with self.assertRaises(BufferError) as caught:
            client.append(trajectory(), table="tarin")
        self.assertIn("eval, train", str(caught.exception))
        for wrong in ({"groups": 0}, {"groups": 1 << 62}, {"selector": "best"}, {"expires_after": 0}, {"learner_version": -1}):
            with self.assertRaises(ValueError):
                client.sample(**wrong)
        client.stats()  # the connection is as it was
        # An older holder of the name is fenced, and says so.
        newer = self.connect()
        self.assertEqual(newer.epoch, client.epoch + 1)
        with self.assertRaises(Fenced) as caught:
            client.append(trajectory(group_id=1, trajectory_id=client.new_ids()))
        self.assertIn("fenced", str(caught.exception))
        with self.assertRaises(Fenced):
            self.connect(token="wrong")

    def test_7_without_a_producer(self) -> None:
        client = self.connect(producer=None)
        self.assertGreater(client.stats()["dispatched"], 0)
        with self.assertRaises(ValueError):
            client.new_ids()
        client.close()
        with self.assertRaises(BufferError) as caught:
            client.stats()
        self.assertEqual(caught.exception.code, "cancelled")


if __name__ == "__main__":
    unittest.main()
