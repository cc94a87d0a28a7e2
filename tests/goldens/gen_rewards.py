"""Writes gen_rewards.json: texts made at random with their scores by python/forebay/rewards.py, for the C++ twin.

    PYTHONPATH=python python3 tests/goldens/gen_rewards.py > tests/goldens/gen_rewards.json
"""
import json
import random

from forebay import rewards

PARTS = ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "{", "####", "```", "\n", "-", "1", "5", "42", ",", ",000", "/",
         ".", ".5", "e1", "\u2212", "\u00e9", " ", "(", ")", "A", "a b", '{"a": 1}']
SHAPES = ["{}", "<think>{}</think><answer>{}</answer>", "\\boxed{{{}}}", "```py\n{}\n```", "#### {}", "{}\n{}"]


def main() -> None:
    rng = random.Random(7)
    cases = []
    while len(cases) < 600:
        text = "".join(rng.choice(PARTS) for _ in range(rng.randrange(8)))
        if rng.random() < 0.5:
            text = rng.choice(SHAPES).format(text, rng.choice(PARTS))
        extract = rng.choice(rewards.EXTRACTS)
        part = rewards.extract(text, extract)
        kind = rng.choice(["exact", "numeric", "numeric", "format"])
        if kind == "format":
            grader, answer = {"kind": kind, "form": rng.choice(rewards.FORMS)}, None
            score = rewards.format_match(text, grader["form"])
        else:
            grader = {"kind": kind, "extract": extract}
            numbers = rewards.numbers(part or "")
            answer = (part or "a b") if kind == "exact" else numbers[-1] if numbers and rng.random() < 0.8 else 5
            match = rewards.exact_match if kind == "exact" else rewards.numeric_match
            score = match(text, answer, extract=extract)
        cases.append({"grader": grader, "text": text, "answer": answer, "score": score})
    print("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]")


if __name__ == "__main__":
    main()
