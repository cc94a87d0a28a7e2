"""Goal: what docs/buffer.md says of a served buffer is so: its example runs as it stands, and a server that is killed and
started again goes on where it was."""
import re
import resource
import struct
import subprocess
import sys
import unittest

from forebay_run import SOURCE, ForebayTest

sys.path.insert(0, str(SOURCE / "python"))
from forebay.buffer import BufferClient, Trajectory  # noqa: E402

LEASE, MARK_TRAINED, COMMIT = 35, 37, 38  # of docs/buffer_protocol.md


class BufferServeTest(ForebayTest):
    def serve(self) -> subprocess.Popen:
        server = subprocess.Popen(self.command("buffer", "serve", self.folder / "shared", "--table", "train", "--table",
                                               "eval", "--group-size", "2"), stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        while (line := server.stdout.readline()) and not line.startswith("serving on"):
            pass
        self.assertEqual(line.strip(), f"serving on {self.address}")
        how_to = "".join(server.stdout.readline() for _ in range(4))
        for part in ("train, eval: groups of 2", "survives power loss", f'BufferClient("{self.address}"', "buffer stat"):
            self.assertIn(part, how_to)
        return server

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/shared/buffer.sock"

    def test_the_example_of_the_documentation(self):
        self.serve()
        text = (SOURCE / "docs/buffer.md").read_text(encoding="utf-8")
        example = re.search(r"```python\n(.*?)```", text, re.S).group(1)
        example = example.replace("unix:/var/lib/forebay/buffer.sock", self.address)
        done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120,
                              env={"PYTHONPATH": str(SOURCE / "python")}, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("{'correct': 1.0}"), 2)
        self.assertIn("'dispatched': 2, 'trained': 2", done.stdout)

    def test_the_open_files_limit_is_raised(self):
        # Segments are open files: at the usual soft limit of 1024 a large buffer would take no more appends.
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        server = self.serve()
        soft = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[0]
        self.assertEqual(soft, 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))

    def test_what_cannot_be_served_is_said_before_anything_is_made(self):
        for tables, word in (["../up"], "no table name"), (["a", "a"], "named twice"):
            named = [word for table in tables for word in ("--table", table)]
            self.assert_fails(self.forebay("buffer", "serve", self.folder / "new/x", *named), 2, word)
            self.assertFalse((self.folder / "new/up").exists())
            self.assertFalse((self.folder / "new/x/a").exists())
        # Two servers on one folder would give the same ids out.
        self.serve()
        other = self.forebay("buffer", "serve", self.folder / "shared", "--table", "other", "--listen",
                             f"unix:{self.folder}/other.sock")
        self.assert_fails(other, 2, "another process serves")
        self.assertFalse((self.folder / "other.sock").exists())

    def test_ids_are_not_given_twice_when_the_list_of_producers_is_lost(self):
        server = self.serve()
        with BufferClient(self.address, producer="actor") as client:
            self.append_group(client)
        server.kill()
        server.wait()
        (self.folder / "shared/producers.json").unlink()
        self.serve()
        with BufferClient(self.address, producer="actor") as client:
            self.append_group(client)
            self.assertEqual(client.stats()["dispatched"], 4)

    def test_D2_a_committed_batch_does_not_come_again_after_a_kill_of_the_server(self):
        server = self.serve()
        with BufferClient(self.address, producer="actor") as client:
            self.append_group(client)
            self.append_group(client)
            first, second = self.lease(client), self.lease(client)
            self.assertEqual([first, second], [(1, False), (2, False)])
            client._call(COMMIT, "train", struct.pack("<q", 1))
            self.append_group(client)  # what it acknowledges comes after the commit in the log
        server.kill()
        server.wait()
        self.serve()
        with BufferClient(self.address, producer="actor") as client:
            # What no checkpoint holds comes again, then what nobody had.
            self.assertEqual([self.lease(client), self.lease(client)], [(2, True), (3, False)])
            stats = client.stats()
            self.assertEqual((stats["dispatched"], stats["trained"], stats["pending"]), (6, 6, 0))

    def append_group(self, client: BufferClient) -> None:
        group = client.new_ids()
        client.append_many(Trajectory(tokens=[1, 2], loss_mask=[0, 1], rollout_logprobs=[0, -0.5], versions=[(0, 1)],
                                      group_id=group, member=member) for member in range(2))

    def lease(self, client: BufferClient) -> tuple:
        """A batch of one group: its number, and whether it is a replay."""
        reply = client._call(LEASE, "train", struct.pack("<2q", 1, 0), told=True)
        sequence, _, replay, _ = struct.unpack_from("<2q2I", reply)
        client._call(MARK_TRAINED, "train", struct.pack("<q", sequence))
        return sequence, bool(replay)


if __name__ == "__main__":
    unittest.main()
