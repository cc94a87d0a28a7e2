"""Goal: what the checks of tools/ forbid is found, and an excuse covers its own statement and no other."""
import pathlib
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools"))
import check_loop  # noqa: E402
import check_rooms  # noqa: E402

TABLE = """# Architecture

| room (folder) | what it is | may include | front header |
|---|---|---|---|
| base | x | - | base/status.h |
| env | x | base | env/environment.h, env/tools.h |

| room | other table |
| buffer | x |
"""


class RoomsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("docs/ARCHITECTURE.md", TABLE)
        for header in ("base/status.h", "env/environment.h", "env/tools.h"):
            self.write("forebay/" + header, "")
        self.write("forebay/env/CMakeLists.txt", "forebay_room(env DEPS base LINK x)\n")

    def write(self, name: str, text: str):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def offences(self) -> list[str]:
        return check_rooms.offences(self.root)

    def test_the_table_of_the_documentation_is_the_one_that_is_checked(self):
        self.assertEqual(check_rooms.read_table(TABLE), {"base": (set(), ["base/status.h"]),
                                                         "env": ({"base"}, ["env/environment.h", "env/tools.h"])})
        self.write("forebay/env/a.cc", '#include "forebay/base/status.h"\n#include "forebay/env/deep/b.h"\n#include <vector>\n')
        self.assertEqual(self.offences(), [])
        self.write("docs/ARCHITECTURE.md", TABLE.replace("| x | base |", "| x | - |"))
        self.assertEqual(self.offences(), ["forebay/env/a.cc:1: room 'env' may not include room 'base'",
                                           "forebay/env/CMakeLists.txt: room 'env' may not link room 'base'"])

    def test_what_the_table_forbids(self):
        self.write("forebay/base/a.cc", '\n#include "forebay/env/environment.h"\n#include "apps/plan.h"\n')
        self.write("forebay/base/a_test.cc", '#include "forebay/env/environment.h"\n')
        self.write("forebay/env/a.h", '#include "forebay/base/deep/b.h"\n')
        self.assertEqual(self.offences(), [
            "forebay/base/a.cc:2: room 'base' may not include room 'env'",
            "forebay/base/a.cc:3: a room may not include apps/, which wires the rooms together",
            "forebay/env/a.h:1: 'base/deep/b.h' is private to room 'base'"])

    def test_the_table_names_what_is_there(self):
        self.write("forebay/new/a.cc", "")
        (self.root / "forebay/env/tools.h").unlink()
        self.assertEqual(self.offences(), ["forebay/new: 'new' is not a room of docs/ARCHITECTURE.md",
                                           "docs/ARCHITECTURE.md: the front header forebay/env/tools.h of 'env' is not there"])
        self.write("docs/ARCHITECTURE.md", "nothing")
        self.assertIn("is not there", self.offences()[0])


class LoopTest(unittest.TestCase):
    def excused(self, text: str) -> list[bool]:
        """Of each line with `work`: whether it may stand on a loop."""
        return [inside or any(word in comment for word in check_loop.FINE)
                for _, code, comment, inside in check_loop.statements(text) if "work" in code]

    def test_an_excuse_covers_one_statement(self):
        self.assertEqual(self.excused("  // short: two words.\n  work(a);\n  work(b);\n"), [True, False])
        self.assertEqual(self.excused("  work(a);  // short: a word.\n  work(b);\n"), [True, False])
        self.assertEqual(self.excused("  // on a worker: as the\n  // header says.\n  const X x =\n      work(a,\n           work(b));\n  work(c);\n"),
                         [True, True, False])
        self.assertEqual(self.excused("  // short: the condition.\n  if (work(a)) {\n    work(b);\n  }\n  work(c);\n"), [True, False, False])
        self.assertEqual(self.excused("  // short: gone after an empty line.\n\n  work(a);\n"), [False])
        self.assertEqual(self.excused("  // short: a.\n  other();\n  // A remark.\n  work(a);\n"), [False])

    def test_what_is_offloaded_needs_no_excuse(self):
        self.assertEqual(self.excused("  auto t = Offload(&loop, pool, [&] {\n    work(a);\n    return work(b);\n  });\n  work(c);\n"),
                         [True, True, False])


if __name__ == "__main__":
    unittest.main()
