"""The functions to write: small, unambiguous, each with the calls that test it."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Tuple


class CodeTask(NamedTuple):
    signature: str
    meaning: str
    tests: List[Tuple[List[Any], Any]]  # arguments, result

    @property
    def function(self) -> str:
        return self.signature.split("(")[0]


_ALL = [
    CodeTask("add(a, b)", "the sum of two numbers", [([1, 2], 3), ([-4, 4], 0), ([10, 5], 15)]),
    CodeTask("double(x)", "twice the number", [([3], 6), ([0], 0), ([-2], -4)]),
    CodeTask("square(x)", "the square of the number", [([3], 9), ([0], 0), ([-5], 25)]),
    CodeTask("is_even(n)", "True if the number is even, else False", [([2], True), ([7], False), ([0], True)]),
    CodeTask("largest(numbers)", "the largest number of a list", [([[1, 9, 3]], 9), ([[-5, -2]], -2), ([[4]], 4)]),
    CodeTask("reverse(text)", "the text backward", [(["abc"], "cba"), ([""], ""), (["xx y"], "y xx")]),
    CodeTask("total(numbers)", "the sum of a list of numbers", [([[1, 2, 3]], 6), ([[]], 0), ([[-1, 1]], 0)]),
    CodeTask("shout(text)", "the text in upper case", [(["abc"], "ABC"), (["Hi you"], "HI YOU"), ([""], "")]),
    CodeTask("count_vowels(text)", "how many of a, e, i, o, u are in the text",
             [(["banana"], 3), (["xyz"], 0), (["aeiou"], 5)]),
    CodeTask("first(items)", "the first item of a list, or None if it is empty",
             [([[7, 8]], 7), ([[]], None), ([["a"]], "a")]),
    CodeTask("factorial(n)", "the factorial of n", [([0], 1), ([1], 1), ([5], 120), ([10], 3628800)]),
    CodeTask("is_palindrome(text)", "True if the text reads the same backward, else False",
             [(["level"], True), (["ab"], False), ([""], True)]),
    CodeTask("unique(items)", "the list without repetitions, in order of first appearance",
             [([[1, 2, 1, 3, 2]], [1, 2, 3]), ([[]], []), ([["b", "a", "b"]], ["b", "a"])]),
    CodeTask("fib(n)", "the n-th Fibonacci number, with fib(0) = 0 and fib(1) = 1",
             [([0], 0), ([1], 1), ([10], 55), ([20], 6765)]),
    CodeTask("smallest(a, b)", "the smaller of two numbers", [([1, 2], 1), ([5, -5], -5), ([3, 3], 3)]),
    CodeTask("word_count(text)", "how many words the text has", [(["a b c"], 3), ([""], 0), (["  one  two "], 2)]),
    CodeTask("flatten(lists)", "one list with the items of a list of lists",
             [([[[1], [2, 3]]], [1, 2, 3]), ([[]], []), ([[[], ["a"]]], ["a"])]),
    CodeTask("is_prime(n)", "True if n is a prime number, else False",
             [([2], True), ([1], False), ([9], False), ([97], True)]),
    CodeTask("last_char(text)", "the last character of the text", [(["abc"], "c"), (["x"], "x"), (["hi "], " ")]),
    CodeTask("gcd(a, b)", "the greatest common divisor of two numbers",
             [([12, 8], 4), ([7, 3], 1), ([100, 10], 10)]),
]

EVAL = _ALL[3::5]
TRAIN = [task for task in _ALL if task not in EVAL]
