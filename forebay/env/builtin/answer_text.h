// Pure functions on what an agent wrote: where the answer stands in it, and what number it is.
//
// python/forebay/rewards.py has the same rules; tests/goldens/rewards.json is tested against both.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace forebay::env {

// Of the last \boxed{...} whose braces close; nullopt if there is none.
std::optional<std::string_view> Boxed(std::string_view text);
// The last line that is not blank.
std::optional<std::string_view> LastLine(std::string_view text);
// What follows the last `mark`.
std::optional<std::string_view> After(std::string_view text, std::string_view mark);
// Of the last <answer>...</answer>.
std::optional<std::string_view> AnswerTag(std::string_view text);

// The last number: digits in groups of three or not, a decimal part, an exponent, a fraction of two
// whole numbers; a minus is a sign unless it stands between two things ("3-5").
std::optional<double> LastNumber(std::string_view text);

// Without case (of ASCII), runs of spaces and one full stop at the end.
std::string Folded(std::string_view text);

bool IsBareNumber(std::string_view text);   // a number and spaces
bool IsThinkAnswer(std::string_view text);  // <think>...</think><answer>...</answer> and spaces
bool HasCodeBlock(std::string_view text);   // a fenced block that is closed
bool IsJsonObject(std::string_view text);

}  // namespace forebay::env
