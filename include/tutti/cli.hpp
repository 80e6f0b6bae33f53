// SPDX-License-Identifier: Apache-2.0
#pragma once

#if !__has_include(<CLI/CLI.hpp>)
#error "tutti: <tutti/cli.hpp> needs CLI11; link tutti::cli11, which tutti_find_cli11() makes"
#endif

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/fields.hpp>
#include <tutti/core/time_or_function.hpp>
#include <tutti/failure.hpp>
#include <tutti/train/options.hpp>

/// Options of a training program from its command line and a configuration file, by CLI11.
namespace tutti::cli {

namespace detail {

template <class T>
constexpr bool is_optional = requires(T& value) {
  value.reset();
  value.has_value();
};

// Stops where a value cannot be read; expected: what it has to be.
[[noreturn]] void refuse(const std::string& expected, std::string_view got);

Precision precision_from(const std::string& text);

// A number without a unit counts epochs, as in the program.
Time time_from(const std::string& text);

// "save_folder" as "--save-folder".
std::string flag_of(std::string_view member);

// The value of an enum whose to_string() gives `text`.
template <class E>
E enum_from(const std::string& text) {
  std::string known;
  for (int i = 0; to_string(static_cast<E>(i)) != "unknown"; ++i) {
    const std::string name(to_string(static_cast<E>(i)));
    if (name == text) {
      return static_cast<E>(i);
    }
    known += (known.empty() ? "" : ", ") + name;
  }
  refuse("one of " + known, text);
}

// All of the text as a number that T holds; no infinity, and nothing that is not a number.
template <class T>
T number_from(std::string_view text) {
  const std::string_view digits =
      text.size() > 1 && text[0] == '+' && text[1] != '-' ? text.substr(1) : text;
  const char* const end = digits.data() + digits.size();
  T value{};
  const auto [read, error] = std::from_chars(digits.data(), end, value);
  bool good = error == std::errc() && read == end;
  if constexpr (std::is_floating_point_v<T>) {
    good = good && std::isfinite(value);
  }
  if (!good) {
    const bool large = error == std::errc::result_out_of_range && read == end;
    refuse(std::string("a ") + (std::is_floating_point_v<T> ? "finite" : "whole") + " number" +
               (std::is_unsigned_v<T> ? " of 0 or more" : ""),
           (text.empty() ? "nothing" : std::string(text)) +
               (large ? ", which is beyond the range of its type" : ""));
  }
  return value;
}

// Reads a value as a user writes it.
template <class T>
T value_from(const std::string& text) {
  if constexpr (std::is_same_v<T, Time> || std::is_same_v<T, TimeOrFunction>) {
    return time_from(text);
  } else if constexpr (std::is_same_v<T, Precision>) {
    return precision_from(text);
  } else if constexpr (std::is_same_v<T, CountOrAuto>) {
    return text == "auto" ? CountOrAuto("auto") : CountOrAuto(number_from<std::int64_t>(text));
  } else if constexpr (std::is_same_v<T, OnOrAuto>) {
    if (text != "true" && text != "false" && text != "auto") {
      refuse("true, false or auto", text);
    }
    return text == "auto" ? OnOrAuto("auto") : OnOrAuto(text == "true");
  } else if constexpr (std::is_same_v<T, OnOrWarn>) {
    if (text != "true" && text != "false" && text != "warn") {
      refuse("true, false or warn", text);
    }
    return text == "warn" ? OnOrWarn("warn") : OnOrWarn(text == "true");
  } else if constexpr (std::is_enum_v<T>) {
    return enum_from<T>(text);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (text != "true" && text != "false" && text != "1" && text != "0") {
      refuse("true or false", text);
    }
    return text == "true" || text == "1";
  } else if constexpr (std::is_base_of_v<std::string, T>) {
    return text;
  } else {
    return number_from<T>(text);
  }
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_same_v<T, CountOrAuto>) {
    return value.automatic ? "auto" : std::to_string(value.count);
  } else if constexpr (std::is_same_v<T, Time>) {
    return value ? to_string(value) : std::string();
  } else if constexpr (std::is_same_v<T, TimeOrFunction>) {
    return text_of(value.time());
  } else if constexpr (is_optional<T>) {
    return value ? text_of(*value) : std::string();
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_arithmetic_v<T>) {
    char text[64];  // the shortest that reads back unchanged
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, OnOrAuto> ||
                       std::is_same_v<T, OnOrWarn>) {
    return std::string(to_string(value));
  } else {
    return value;
  }
}

template <class T>
constexpr bool is_list = std::is_same_v<T, std::vector<std::string>>;

template <class T>
constexpr bool is_option =
    std::is_arithmetic_v<T> || is_list<T> || std::is_enum_v<T> || std::is_same_v<T, Time> ||
    std::is_same_v<T, TimeOrFunction> || std::is_same_v<T, CountOrAuto> ||
    std::is_same_v<T, OnOrAuto> || std::is_same_v<T, OnOrWarn> || std::is_base_of_v<std::string, T>;
template <class T>
  requires is_optional<T>
constexpr bool is_option<T> = is_option<typename T::value_type>;

template <class T>
constexpr bool listable = tutti::detail::has_fields<T>();

// What --help says of an option that has a value, and what reads it.
struct Described {
  std::string about{};
  const char* type = "TEXT";
  std::string default_text{};
  std::function<void(const std::string&)> read{};
};

class CommandLine;  // CLI11's part, which is compiled with the functions that are no templates

}  // namespace detail

/// The options of a program.
///
///     int main(int argc, char** argv) try {
///       tutti::TrainerOptions options{.max_duration = "10ep"};
///       std::string data = "data";
///       tutti::cli::Program program{"cifar10", "Trains a ResNet on CIFAR-10."};
///       program.add("--data", data, "folder of the images").add(options);
///       program.parse(argc, argv);
///       options.train = load(data);
///       tutti::Trainer trainer{model, options, ...};
///       trainer.fit();
///     } catch (...) {
///       return tutti::report_failure();
///     }
///
/// What a variable holds before parse() is the default. `--help` lists all; `--config FILE` reads
/// lines `max-duration = "3ep"`, which the command line overrides; `--print-config` prints such a
/// file and trains nothing; `--version` says which tutti and which LibTorch it is. Of a flag that
/// is given twice, --config too, the last one counts; the values of a list add up.
class Program {
 public:
  /// name: as it is called. about: one sentence for --help.
  Program(const std::string& name, const std::string& about);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Binds one flag. value: a number (finite), text, list of texts, bool (`--flag`, `--no-flag`),
  /// Time or TimeOrFunction (a number without a unit is epochs), enum with to_string(),
  /// CountOrAuto, OnOrAuto, OnOrWarn, or an optional one of these; has to outlive parse().
  template <class T>
  Program& add(const std::string& flag, T& value, const std::string& about) {
    static_assert(detail::is_option<T>,
                  "tutti: an option of this type cannot be read from a command line; make it a "
                  "number, bool, text, std::vector<std::string>, tutti::Time or an enum with "
                  "to_string(), or an std::optional of one.");
    if constexpr (detail::is_option<T>) {
      bind(flag, value, about);
    }
    return *this;
  }

  /// Binds every member of a struct of one's own, an aggregate of at most 20: `batch_size` is
  /// `--batch-size`. Of a policy, not what it holds while it runs.
  template <class T>
    requires std::is_aggregate_v<T>
  Program& add(T& options) {
    static_assert(detail::listable<T>,
                  "tutti: this struct has more than 20 members, or a base class, and cannot be "
                  "listed; bind its members one by one: program.add(\"--flag\", options.member, "
                  "\"what it is\").");
    if constexpr (detail::listable<T>) {
      tutti::detail::for_each_option(options, [this](std::string_view name, auto& value) {
        this->add(detail::flag_of(name), value, "");
      });
    }
    return *this;
  }

  /// Binds the trainer's options, `--max-duration` to `--dist-timeout`; parse() also leaves all
  /// options of the program in `options.hyperparameters`, which the trainer logs, and how it was
  /// called in `options.command_line`, for the run's folder and its end. Where on_signal
  /// is not set it is exit: the process is the program's.
  Program& add(TrainerOptions& options);

  /// Reads the command line. For --help, --version, --print-config (at rank 0) and mistakes it
  /// prints what there is to say and ends the process, with CLI11's exit status.
  void parse(int argc, const char* const* argv);

  /// The same for words, without the program's name; prints nothing.
  /// Throws c10::ValueError saying which option is wrong and why.
  void read(std::vector<std::string> words);

  /// All options with their values, as a file for --config.
  [[nodiscard]] std::string text() const;

  /// All options with their values.
  [[nodiscard]] std::vector<std::pair<std::string, HyperparameterValue>> values() const;

 private:
  template <class T>
  void bind(const std::string& flag, T& value, const std::string& about) {
    if constexpr (std::is_same_v<T, bool>) {
      add_switch(flag, value, about);
    } else if constexpr (detail::is_list<T>) {
      add_list(flag, value, about);
    } else {
      add_value(flag, {.about = about,
                       .type = std::is_integral_v<T>         ? "INT"
                               : std::is_floating_point_v<T> ? "FLOAT"
                                                             : "TEXT",
                       .default_text = detail::text_of(value),
                       .read = [&value](const std::string& text) {
                         if constexpr (detail::is_optional<T>) {
                           value = detail::value_from<typename T::value_type>(text);
                         } else {
                           value = detail::value_from<T>(text);
                         }
                       }});
    }
    values_.emplace_back(flag.substr(2), [&value] { return constant_of(value); });
  }
  void add_value(const std::string& flag, detail::Described option);
  void add_list(const std::string& flag, std::vector<std::string>& value, const std::string& about);
  void add_switch(const std::string& flag, bool& value, const std::string& about);

  template <class T>
  static HyperparameterValue constant_of(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<std::int64_t>(value);
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<double>(value);
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      std::string all;
      for (const std::string& one : value) {
        all += (all.empty() ? "" : ",") + one;
      }
      return all;
    } else {
      return detail::text_of(value);
    }
  }

  void finish();

  std::unique_ptr<detail::CommandLine> line_;
  std::vector<std::pair<std::string, std::function<HyperparameterValue()>>> values_;
  TrainerOptions* trainer_ = nullptr;
};

}  // namespace tutti::cli

#if TUTTI_BODIES
#include <tutti/cli.inl.hpp>
#endif
