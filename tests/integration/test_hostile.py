"""Goal: what an unlucky user meets at the edges (prompts that do not fit, a damaged or full run directory, two programs on
one run) ends soon, with the exit code of its kind and one clear paragraph."""
import unittest

from forebay_run import SMALL, ForebayTest


class EdgeTest(ForebayTest):
    def test_prompts_that_leave_no_room_end_the_run(self):
        # Each such episode ends at once, so without this the run would spin until its lease deadline.
        done = self.train(self.write("c.toml", SMALL), "--set", "rollout.tokens_max=8")
        self.assert_fails(done, 2, "no room for an action", "rollout.tokens_max = 8")
        self.assertLess(len(self.lines("trajectories.jsonl")), 1000)


if __name__ == "__main__":
    unittest.main()
