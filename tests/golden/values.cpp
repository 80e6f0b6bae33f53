#include <algorithm>
#include <cctype>
#include <cmath>
#include <variant>

#include <tutti/optim/schedules.hpp>

#include "golden/arguments.hpp"
#include "golden/runner.hpp"

namespace golden {
namespace {

using tutti::Time;

// ---- time_parse --------------------------------------------------------------------------------

std::string trimmed(const std::string& text) {
  const auto from = text.find_first_not_of(" \t\n\r\f\v");
  const auto to = text.find_last_not_of(" \t\n\r\f\v");
  return from == std::string::npos ? "" : text.substr(from, to - from + 1);
}

// Digits with the letters h, m, s in either case, each once and in this order.
bool is_wall_clock(const std::string& text) {
  std::string units = "hms";
  bool digits = false;
  for (const char letter : text) {
    const auto c = static_cast<unsigned char>(letter);
    if (std::isdigit(c) != 0) {
      digits = true;
    } else if (const auto at = units.find(static_cast<char>(std::tolower(c)));
               digits && at != std::string::npos) {
      units.erase(0, at + 1);
      digits = false;
    } else {
      return false;
    }
  }
  return !text.empty() && !digits;
}

// Begins as a NaN or an infinity does.
bool is_no_number(const std::string& text) {
  std::string word = text.substr(std::min(text.find_first_not_of("+-"), text.size()), 3);
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return word == "nan" || word == "inf";
}

// The reference lets a wall-clock field lack its letter ("5" is 50 s, "" is 0 s), limits fields
// to 23 h, 59 min, 59 s, and knows their letters in lower case only; here every field has its
// letter, in either case, and any size, and blanks at both ends are ignored. A dur is a number.
bool refused_on_purpose(const std::string& text) {
  const std::string core = trimmed(text);
  return core.empty() || std::isdigit(static_cast<unsigned char>(core.back())) != 0 ||
         is_no_number(core);
}
bool accepted_on_purpose(const std::string& text) {
  return is_wall_clock(trimmed(text)) || trimmed(text) != text;
}

void time_parse(const Case& c, Verdict& verdict) {
  const Json& strings = c.params["strings"];
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const std::string text = strings[i].string();
    const Json& want = c.expect["results"][i];
    std::string got;
    try {
      const Time time = Time::parse(text);
      got = to_string(time);
      if (want.is_array()) {
        verdict.check(time.value() == want[0].number() &&
                          to_string(time.unit()) == want[1].string() && got == want[2].string(),
                      "\"" + text + "\" is read as " + got + ", expected " + want[2].string());
      } else {
        verdict.check(accepted_on_purpose(text), "\"" + text + "\" is read as " + got +
                                                     ", expected " + want["raises"].string());
        verdict.differs(stated::time_text);
      }
    } catch (const std::exception& error) {
      if (want.is_array()) {
        verdict.check(refused_on_purpose(text), "\"" + text + "\" is refused: " + error.what());
        verdict.differs(stated::time_text);
      } else {
        verdict.judge(error, want["raises"].string(), {"Time: cannot read " + text},
                      "\"" + text + "\"");
      }
    }
  }
}

// ---- time_arith --------------------------------------------------------------------------------

using Operand = std::variant<Time, double, std::int64_t>;
using Result = std::variant<Time, double, bool>;

Operand operand(const Json& json) {
  if (json.is_string()) {
    return Time::parse(json.string());
  }
  if (json.is_bool()) {  // Python's True is 1
    return static_cast<std::int64_t>(json.boolean());
  }
  return json.is_int() ? Operand(json.integer()) : Operand(json.number());
}

template <class A, class B>
Result combine(const std::string& op, A a, B b) {
  if (op == "+") {
    return a + b;
  }
  if (op == "-") {
    return a - b;
  }
  if (op == "*") {
    return a * b;
  }
  if (op == "==") {
    return a == b;
  }
  if (op == "!=") {
    return a != b;
  }
  if (op == "<") {
    return a < b;
  }
  if (op == "<=") {
    return a <= b;
  }
  if (op == ">") {
    return a > b;
  }
  if (op == ">=") {
    return a >= b;
  }
  if constexpr (std::is_same_v<A, Time>) {
    if (op == "/") {
      return a / b;
    }
    if (op == "%") {
      return a % b;
    }
  }
  throw std::invalid_argument("Time: a number " + op + " a time does not compile");
}

Result evaluate(const Json& operation, Operand (*read)(const Json&) = operand) {
  const Operand left = read(operation[0]);
  const std::string& op = operation[1].string();
  if (op == "int") {
    return static_cast<double>(std::get<Time>(left).count());
  }
  if (op == "float") {
    return std::get<Time>(left).value();
  }
  if (op == "neg") {
    return -std::get<Time>(left);
  }
  if (op == "pos") {
    return std::get<Time>(left);
  }
  return std::visit(
      [&](auto a, auto b) -> Result {
        if constexpr (std::is_same_v<decltype(a), Time> || std::is_same_v<decltype(b), Time>) {
          return combine(op, a, b);
        } else {
          throw Skipped("an operation without a Time");
        }
      },
      left, read(operation[2]));
}

bool agrees(const Result& got, const Json& want) {
  if (want.is_array()) {
    const Time* time = std::get_if<Time>(&got);
    return time != nullptr && time->value() == want[0].number() &&
           to_string(time->unit()) == want[1].string();
  }
  if (want.is_bool()) {
    return std::holds_alternative<bool>(got) && std::get<bool>(got) == want.boolean();
  }
  return std::holds_alternative<double>(got) && std::get<double>(got) == want.number();
}

// 2.0 as 2. The reference takes no number of floating type beside a time of whole units; here one
// without a fraction is that whole number.
Operand whole(const Json& json) {
  const Operand read = operand(json);
  const double* number = std::get_if<double>(&read);
  return number != nullptr && std::trunc(*number) == *number
             ? Operand(static_cast<std::int64_t>(*number))
             : read;
}

// The reference raises, and tutti gives what it gives for the whole number.
bool is_taken_as_whole(const Json& operation, const Result& got) {
  const Operand left = operand(operation[0]);
  const Operand right = operand(operation[2]);
  const bool floating =
      std::holds_alternative<double>(left) || std::holds_alternative<double>(right);
  return floating && got == evaluate(operation, whole);
}

void time_arith(const Case& c, Verdict& verdict) {
  const Json& operations = c.params["ops"];
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Json& want = c.expect["results"][i];
    const std::string which =
        "operation " + std::to_string(i) + " (" + operations[i][1].string() + ")";
    try {
      const Result got = evaluate(operations[i]);
      const bool right =
          want.is_object() ? is_taken_as_whole(operations[i], got) : agrees(got, want);
      verdict.check(right, which + " has another result");
      if (want.is_object()) {
        verdict.differs(stated::whole_number);
      }
    } catch (const std::exception& error) {
      if (want.is_object()) {
        verdict.judge(error, want["raises"].string(), {"Time: "}, which);
      } else {
        verdict.check(false, which + " throws: " + error.what());
      }
    }
  }
}

// ---- scheduler ---------------------------------------------------------------------------------

tutti::Progress progress_of(const Case& c, std::int64_t batch) {
  tutti::Progress p{.max_duration = Time::parse(c.params["max_duration"].string()),
                    .dataloader_len = c.params["dataloader_len"].integer()};
  p.timestamp.batch = batch;
  p.timestamp.epoch = batch / p.dataloader_len;
  p.timestamp.sample = 4 * batch;
  p.timestamp.token = 32 * batch;
  return p;
}

void scheduler(const Case& c, Verdict& verdict) {
  const Arguments params(c.params, "scheduler");
  for (const char* read_elsewhere : {"max_duration", "dataloader_len"}) {
    params.json(read_elsewhere);
  }
  const double ratio = params.number("ssr", 1.0);
  const std::int64_t batches = params.integer("batches", 0);
  const auto schedule = make_schedule(params.text("class", ""), params.json("args"));
  params.done();
  const at::Tensor got = at::empty({batches + 1}, at::kDouble);
  const auto all = [&] {
    for (std::int64_t batch = 0; batch <= batches; ++batch) {
      got[batch] = schedule(progress_of(c, batch), ratio);
    }
  };
  if (verdict.raises_as_reference(all, {"schedule: "})) {
    verdict.tensor("multiplier", got);
  }
}

}  // namespace

Handlers value_handlers() {
  return {{"time_parse", time_parse}, {"time_arith", time_arith}, {"scheduler", scheduler}};
}

}  // namespace golden
