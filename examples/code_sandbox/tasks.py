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
    CodeTask("negate(x)", "the number with the opposite sign", [([3], -3), ([-2], 2), ([0], 0)]),
    CodeTask("is_odd(n)", "True if the number is odd, else False", [([3], True), ([4], False), ([-1], True)]),
    CodeTask("cube(x)", "the number to the power of three", [([2], 8), ([-1], -1), ([0], 0)]),
    CodeTask("length(text)", "how many characters the text has", [(["abc"], 3), ([""], 0), (["a b"], 3)]),
    CodeTask("product(numbers)", "the product of a list of numbers, 1 if it is empty",
             [([[2, 3, 4]], 24), ([[]], 1), ([[5, 0]], 0)]),
    CodeTask("whisper(text)", "the text in lower case", [(["ABC"], "abc"), (["Hi You"], "hi you"), ([""], "")]),
    CodeTask("absolute(x)", "the number without its sign", [([-3], 3), ([4], 4), ([0], 0)]),
    CodeTask("last(items)", "the last item of a list", [([[7, 8]], 8), ([["a"]], "a"), ([[1, 2, 3]], 3)]),
    CodeTask("repeat(text, n)", "the text n times in a row", [(["ab", 2], "abab"), (["x", 0], ""), (["x", 3], "xxx")]),
    CodeTask("difference(a, b)", "the first number minus the second", [([5, 3], 2), ([1, 4], -3), ([0, 0], 0)]),
    CodeTask("ascending(numbers)", "the list in ascending order", [([[3, 1, 2]], [1, 2, 3]), ([[]], []), ([[2, -2]], [-2, 2])]),
    CodeTask("descending(numbers)", "the list in descending order", [([[3, 1, 2]], [3, 2, 1]), ([[]], []), ([[-2, 2]], [2, -2])]),
    CodeTask("join(words)", "the words of a list with a space between them",
             [([["a", "b"]], "a b"), ([["hi"]], "hi"), ([[]], "")]),
    CodeTask("words(text)", "a list of the words of the text", [(["a b"], ["a", "b"]), (["hi"], ["hi"]), ([""], [])]),
    CodeTask("contains(items, x)", "True if x is in the list, else False",
             [([[1, 2], 2], True), ([[1, 2], 3], False), ([[], 1], False)]),
    CodeTask("count(items, x)", "how often x is in the list", [([[1, 2, 1], 1], 2), ([[], 1], 0), ([["a"], "a"], 1)]),
    CodeTask("is_positive(x)", "True if the number is above zero, else False", [([3], True), ([0], False), ([-2], False)]),
    CodeTask("smallest_of(numbers)", "the smallest number of a list", [([[4, 1, 9]], 1), ([[-5, -2]], -5), ([[4]], 4)]),
    CodeTask("mean(numbers)", "the mean of a list of numbers", [([[1, 2, 3]], 2), ([[4]], 4), ([[1, 2]], 1.5)]),
    CodeTask("evens(numbers)", "the even numbers of a list", [([[1, 2, 4]], [2, 4]), ([[1]], []), ([[]], [])]),
    CodeTask("doubled(numbers)", "a list with each number doubled", [([[1, 2]], [2, 4]), ([[]], []), ([[-3]], [-6])]),
    CodeTask("half(x)", "half of the number", [([4], 2), ([0], 0), ([3], 1.5)]),
    CodeTask("is_empty(items)", "True if the list has no items, else False", [([[]], True), ([[1]], False), ([[0, 0]], False)]),
    CodeTask("first_char(text)", "the first character of the text", [(["abc"], "a"), (["x"], "x"), ([" hi"], " ")]),
    CodeTask("squares(n)", "a list of the squares of 1 to n", [([3], [1, 4, 9]), ([0], []), ([1], [1])]),
    CodeTask("without_spaces(text)", "the text without its spaces", [(["a b c"], "abc"), ([""], ""), (["hi"], "hi")]),
    CodeTask("next_number(n)", "the number plus one", [([1], 2), ([-1], 0), ([9], 10)]),
    CodeTask("larger(a, b)", "the larger of two numbers", [([1, 2], 2), ([5, -5], 5), ([3, 3], 3)]),
    CodeTask("remainder(a, b)", "the remainder of a divided by b", [([7, 3], 1), ([8, 2], 0), ([1, 5], 1)]),
    CodeTask("power(a, b)", "a to the power of b", [([2, 3], 8), ([5, 0], 1), ([3, 1], 3)]),
]

EVAL = _ALL[3::5]
TRAIN = [task for task in _ALL if task not in EVAL]
