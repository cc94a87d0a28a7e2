"""Goal: the environments that the documentation shows are sound."""

import contextlib
import io
import pathlib
import re
import tempfile
import unittest

from forebay import check

SOURCE = pathlib.Path(__file__).resolve().parents[2]


class DocsTest(unittest.TestCase):
    def test_each_environment_that_is_shown_plays(self) -> None:
        shown = [block for page in ("README.md", "docs/environments.md")
                 for block in re.findall(r"^```python\n(.*?)^```", (SOURCE / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
                 if "serve(" in block]
        self.assertGreaterEqual(len(shown), 3)
        for block in shown:
            with self.subTest(block), tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder, "env.py")
                file.write_text(block)
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    code = check.main(["--episodes", "2", "--steps", "2", str(file)])
                self.assertEqual(code, 0, out.getvalue())
                self.assertIn("rewards ", out.getvalue())


if __name__ == "__main__":
    unittest.main()
