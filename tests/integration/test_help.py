"""Goal: --help of every command and the tables of options in docs/ name the same options with the same defaults, and every command line
in the documentation uses options that there are."""
import re
import unittest

from forebay_run import SOURCE, ForebayTest

OPTION = re.compile(r"^  (?:-\w,)?(--[\w-]+)(.*)$")
TABLE = re.compile(r"^\|\s*option\s*\|")


def commands_of(help_text: str) -> list[str]:
    _, _, below = help_text.partition("\nSubcommands:\n")
    return re.findall(r"^  ([a-z]+)", below.split("\n\n")[0], re.MULTILINE)


def options_of(help_text: str) -> dict[str, str]:
    """Each option with what is said of it, in one line."""
    options, name = {}, None
    for line in help_text.splitlines():
        match = OPTION.match(line)
        if match:
            name = match.group(1)
            options[name] = match.group(2)
        elif name and line.startswith("   "):
            options[name] += " " + line.strip()
        else:
            name = None
    options.pop("--help", None)
    options.pop("--version", None)
    return options


def table_of(text: str) -> dict[str, str]:
    """The first table of options in a text: each option with its row."""
    rows, inside = {}, False
    for line in text.splitlines():
        if not inside:
            inside = bool(TABLE.match(line))
        elif not line.startswith("|"):
            break
        else:
            cell = line.split("|")[1]
            rows.update({name: line for name in re.findall(r"`(--[\w-]+)`", cell)})
    return rows


class HelpTest(ForebayTest):
    @classmethod
    def setUpClass(cls):
        cls.helps = {}

    def help_of(self, *command: str) -> str:
        if command not in self.helps:
            done = self.forebay(*command, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.helps[command] = done.stdout
        return self.helps[command]

    def all_commands(self) -> list[tuple[str, ...]]:
        """Those that do something: not `buffer` alone."""
        found, waiting = [], [()]
        while waiting:
            command = waiting.pop()
            below = commands_of(self.help_of(*command))
            waiting += [(*command, name) for name in below]
            if not below:
                found.append(command)
        return sorted(found)

    def documented(self, command: tuple[str, ...]) -> str:
        """The part of the documentation with the command's table of options."""
        if command == ("serve",):
            return (SOURCE / "docs/serving.md").read_text(encoding="utf-8")
        text = (SOURCE / "docs/commands.md").read_text(encoding="utf-8")
        title = f"\n## forebay {' '.join(command)}\n"
        self.assertIn(title, text)
        return text.split(title)[1].split("\n## ")[0]

    def test_every_option_stands_in_the_documentation_with_its_default(self):
        commands = self.all_commands()
        self.assertIn(("buffer", "serve"), commands)
        self.assertGreater(len(commands), 14)
        for command in commands:
            with self.subTest(" ".join(command)):
                options = options_of(self.help_of(*command))
                rows = table_of(self.documented(command))
                self.assertEqual(sorted(options), sorted(rows))
                for name, meaning in options.items():
                    for default in re.findall(r"default: ([^;)]+)", meaning):
                        # A default in words may be said in others; its numbers and names are the same.
                        words = [default] if " " not in default else re.findall(r"\b\d+\b|\b[A-Z_]{4,}\b|\bruns/[\w-]+", default)
                        for word in words:
                            self.assertIn(word, rows[name], f"the default of {name}")

    def test_help_fits_a_terminal_and_says_something_of_each_option(self):
        for command in [(), ("buffer",), *self.all_commands()]:
            with self.subTest(" ".join(command)):
                text = self.help_of(*command)
                for line in text.splitlines():
                    self.assertLessEqual(len(line), 100, line)
                for name, meaning in options_of(text).items():
                    self.assertGreater(len(meaning.split()), 1, name)

    def test_command_lines_in_the_documentation_use_options_that_there_are(self):
        seen = 0
        for path in [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]:
            text = path.read_text(encoding="utf-8").replace("\\\n", " ")
            for line in re.findall(r"(?:^|\s|`|/)forebay ((?:[a-z]+ )+[^`\n]*)", text):
                words = line.split(" # ")[0].split()
                command = ()
                while words and words[0] in commands_of(self.help_of(*command)):
                    command += (words.pop(0),)
                if not command or commands_of(self.help_of(*command)):
                    continue  # a sentence that speaks of forebay
                known = options_of(self.help_of(*command))
                for word in words:
                    name = re.match(r"--[a-z][\w-]*", word)
                    if name:
                        seen += 1
                        self.assertIn(name.group(), [*known, "--help"], f"{path.name}: forebay {line}")
        self.assertGreater(seen, 20)


if __name__ == "__main__":
    unittest.main()
