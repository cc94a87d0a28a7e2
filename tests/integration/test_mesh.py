"""Goal: a run whose learner is spread over devices trains and can be replayed; what does not divide is refused before
anything starts."""
import os
import unittest

from forebay_run import SMALL, ForebayTest

# A program has two rows of 256 tokens. (The tiny model's 259 words divide over no tensor axis.)
MESH = ("--virtual-devices", 4, "--set", "mesh.fsdp=2", "--set", "mesh.context=2")


class MeshTest(ForebayTest):
    def test_trains_and_replays(self):
        config = self.write("c.toml", SMALL)
        done = self.train(config, *MESH, "--set", "run.steps=2", timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        replayed = self.forebay("replay", self.run_folder, "--step", 2, timeout=300)
        self.assertEqual(replayed.returncode, 0, replayed.stderr + replayed.stdout)

    def test_what_does_not_divide_is_refused(self):
        config = self.write("c.toml", SMALL)
        self.assert_fails(self.train(config, "--virtual-devices", 2, "--set", "mesh.fsdp=4"), 2, "virtual_devices", "4")
        self.assert_fails(self.train(config, "--virtual-devices", 3, "--set", "mesh.tensor=3",
                                     "--set", "learner.row_lengths=[258]"), 2,
                          "mesh.tensor = 3", "num_attention_heads", "it may be 1")
        self.assert_fails(self.train(config, "--virtual-devices", 3, "--set", "mesh.fsdp=3"), 2,
                          "mesh.fsdp", "hidden_size", "it may be 1, 2, 4")
        self.assert_fails(self.train(config, "--virtual-devices", 3, "--set", "mesh.context=3",
                                     "--set", "learner.row_lengths=[256]"), 2, "multiples of 3", "258")
        # The CPU plugin shows one device.
        self.assert_fails(self.train(config, "--set", "mesh.data=2"), 2, "there is 1", "--virtual-devices 2")

    def test_a_mesh_that_is_refused_costs_no_old_run(self):
        config = self.write("c.toml", SMALL)
        old = os.path.join(self.run_folder, "checkpoints", "latest")
        os.makedirs(os.path.dirname(old))
        for path in (os.path.join(self.run_folder, "config.toml"), old):
            with open(path, "w", encoding="utf-8") as file:
                file.write("an old run's\n")
        refused = self.train(config, "--virtual-devices", 3, "--set", "mesh.tensor=3", "--set",
                             "learner.row_lengths=[258]", "--overwrite")
        self.assert_fails(refused, 2, "mesh.tensor = 3")
        self.assertTrue(os.path.exists(old))

    def test_every_optimizer_trains(self):
        config = self.write("c.toml", SMALL)
        for optimizer in ("adamw_8bit", "adafactor", "muon"):
            done = self.train(config, "--virtual-devices", 2, "--set", "mesh.fsdp=2", "--set", "run.steps=1",
                              "--set", "learner.optimizer=" + optimizer, "--overwrite", timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
