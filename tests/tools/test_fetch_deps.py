"""Goal: set-up downloads what is missing or wrong, once, and leaves nothing in place that is not the file it asked for."""
import hashlib
import pathlib
import sys
import tempfile
import unittest
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools"))
import fetch_deps  # noqa: E402

HEADER = b"// a header\n"


class FetchDepsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.deps = self.folder / "deps"
        self.wheel = self.folder / "x.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("x/include/a.h", HEADER)
            archive.writestr("x/include/not_a.h", "another")
        self.line = f"x==1 3.12 any 00 a.h include/a.h {hashlib.sha256(HEADER).hexdigest()}"
        self.dependency, = fetch_deps.read_list(f"# A remark.\n\n{self.line}\n")

    def test_a_file_that_is_there_is_not_fetched_again(self):
        self.assertFalse(fetch_deps.is_there(self.dependency, self.deps))
        fetch_deps.unpack(self.dependency, self.wheel, self.deps)
        target = self.deps / "include/a.h"
        self.assertEqual(target.read_bytes(), HEADER)
        self.assertTrue(fetch_deps.is_there(self.dependency, self.deps))  # by its hash
        self.assertEqual(fetch_deps.stamp_of(self.dependency, self.deps).read_text(), self.line)
        other = self.dependency._replace(wheel="x==2")  # the same file from another wheel
        self.assertTrue(fetch_deps.is_there(other, self.deps))

    def test_another_file_in_its_place_is_replaced(self):
        target = self.deps / "include/a.h"
        target.parent.mkdir(parents=True)
        target.write_text("an older one")
        self.assertFalse(fetch_deps.is_there(self.dependency, self.deps))
        fetch_deps.unpack(self.dependency, self.wheel, self.deps)
        self.assertEqual(target.read_bytes(), HEADER)
        newer = self.dependency._replace(sha256="1" * 64)  # the list wants another one now
        self.assertFalse(fetch_deps.is_there(newer, self.deps))

    def test_a_wheel_with_another_file_is_refused_and_leaves_nothing(self):
        with self.assertRaisesRegex(RuntimeError, "not the file that was expected"):
            fetch_deps.unpack(self.dependency._replace(sha256="1" * 64), self.wheel, self.deps)
        with self.assertRaisesRegex(RuntimeError, "x==1 holds no b.h"):
            fetch_deps.unpack(self.dependency._replace(member="b.h"), self.wheel, self.deps)
        self.assertEqual(list((self.deps / "include").iterdir()), [])

    def test_a_line_that_is_no_dependency_is_shown(self):
        with self.assertRaisesRegex(SystemExit, "has 2 words, not wheel .* x==1 3.12"):
            fetch_deps.read_list("x==1 3.12\n")

    def test_the_lists_of_the_project_can_be_read(self):
        found = fetch_deps.read_list((SOURCE / "tools/deps.txt").read_text(encoding="utf-8"))
        self.assertIn("pjrt/pjrt_cpu.so", [dependency.target for dependency in found])
        for dependency in found:
            self.assertRegex(dependency.wheel_sha256 + dependency.sha256, "^[0-9a-f]{128}$")


if __name__ == "__main__":
    unittest.main()
