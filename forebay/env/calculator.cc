#include "forebay/env/calculator.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env {
namespace {

constexpr size_t kExpressionBytesMax = 1000;
constexpr int kDepthMax = 100;

// Recursive descent over: sum = product {+- product}, product = signed {* / // % signed},
// signed = {+-} power, power = atom [** signed].
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<double> Run() {
    FB_ASSIGN_OR_RETURN(const double value, Sum());
    Skip();
    if (at_ < text_.size()) return Unexpected();
    return value;
  }

 private:
  Result<double> Sum() {
    FB_ASSIGN_OR_RETURN(double value, Product());
    while (true) {
      if (Take("+")) {
        FB_ASSIGN_OR_RETURN(const double right, Product());
        value += right;
      } else if (Take("-")) {
        FB_ASSIGN_OR_RETURN(const double right, Product());
        value -= right;
      } else {
        return value;
      }
    }
  }

  Result<double> Product() {
    FB_ASSIGN_OR_RETURN(double value, Signed());
    while (true) {
      Skip();
      if (text_.substr(at_).starts_with("**")) return value;
      const bool floor = Take("//");
      const bool divide = !floor && Take("/");
      const bool modulo = !floor && !divide && Take("%");
      const bool multiply = !floor && !divide && !modulo && Take("*");
      if (!floor && !divide && !modulo && !multiply) return value;
      FB_ASSIGN_OR_RETURN(const double right, Signed());
      if (!multiply && right == 0) return InvalidArgument("division by zero");
      if (multiply) {
        value *= right;
      } else if (divide) {
        value /= right;
      } else if (floor) {
        value = std::floor(value / right);
      } else {
        value = value - right * std::floor(value / right);
      }
    }
  }

  Result<double> Signed() {
    if (++depth_ > kDepthMax) return InvalidArgument("the expression is nested too deep");
    Result<double> value = Take("-") ? Negated() : Take("+") ? Signed() : Power();
    --depth_;
    return value;
  }

  Result<double> Negated() {
    FB_ASSIGN_OR_RETURN(const double value, Signed());
    return -value;
  }

  Result<double> Power() {
    FB_ASSIGN_OR_RETURN(const double base, Atom());
    if (!Take("**") && !Take("^")) return base;
    FB_ASSIGN_OR_RETURN(const double exponent, Signed());
    const double value = std::pow(base, exponent);
    if (!std::isfinite(value)) {
      return InvalidArgument(fmt::format("{} to the power {} is no number", base, exponent));
    }
    return value;
  }

  Result<double> Atom() {
    if (Take("(")) {
      if (++depth_ > kDepthMax) return InvalidArgument("the expression is nested too deep");
      FB_ASSIGN_OR_RETURN(const double value, Sum());
      --depth_;
      if (!Take(")")) return InvalidArgument("a closing parenthesis is missing");
      return value;
    }
    Skip();
    double value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return Unexpected();
    at_ += static_cast<size_t>(end - begin);
    return value;
  }

  Status Unexpected() const {
    if (at_ >= text_.size()) return InvalidArgument("the expression ends too early");
    return InvalidArgument(
        fmt::format("'{}' cannot be read: an expression has numbers, + - * / // % ** and ( )",
                    text_.substr(at_, 20)));
  }

  void Skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool Take(std::string_view sign) {
    Skip();
    if (!text_.substr(at_).starts_with(sign)) return false;
    at_ += sign.size();
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

class CalculatorSession final : public ToolSession {
 public:
  const std::vector<ToolSpec>& tools() const override { return tools_; }

  Task<Result<ToolResult>> Call(ToolCall call, TimePoint) override {
    const auto arguments = nlohmann::json::parse(call.arguments, nullptr, false);
    const auto expression = arguments.is_object() ? arguments.find("expression") : arguments.end();
    if (expression == arguments.end() || !expression->is_string()) {
      co_return ToolResult{.text = R"('calculator' needs the argument "expression", a text)",
                           .error = true};
    }
    const Result<std::string> value = Calculate(expression->get<std::string>());
    if (!value.ok()) co_return ToolResult{.text = value.status().message(), .error = true};
    co_return ToolResult{.text = *value};
  }

 private:
  const std::vector<ToolSpec> tools_ = {
      {.name = "calculator",
       .description = "Calculates an expression of numbers, + - * / // % ** and parentheses.",
       .parameters = R"({"type":"object","properties":{"expression":{"type":"string",)"
                     R"("description":"for instance (1 + 2) * 3"}},"required":["expression"]})"}};
};

class CalculatorProvider final : public ToolProvider {
 public:
  Task<Result<std::unique_ptr<ToolSession>>> Open(TimePoint) override {
    co_return std::unique_ptr<ToolSession>(std::make_unique<CalculatorSession>());
  }
  Task<void> Shutdown(TimePoint) override { co_return; }
};

}  // namespace

Result<std::string> Calculate(std::string_view expression) {
  if (expression.size() > kExpressionBytesMax) {
    return InvalidArgument(
        fmt::format("the expression is longer than {} characters", kExpressionBytesMax));
  }
  FB_ASSIGN_OR_RETURN(const double value, Parser(expression).Run());
  if (!std::isfinite(value)) return InvalidArgument("the result is too large");
  constexpr double kWholeMax = 9007199254740992.0;  // 2^53
  if (value == std::floor(value) && std::abs(value) <= kWholeMax) {
    return fmt::format("{}", static_cast<int64_t>(value));
  }
  return fmt::format("{}", value);  // the shortest text that reads back as the same number
}

std::unique_ptr<ToolProvider> MakeCalculator() { return std::make_unique<CalculatorProvider>(); }

}  // namespace forebay::env
