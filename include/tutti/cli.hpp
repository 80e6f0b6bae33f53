// SPDX-License-Identifier: Apache-2.0
#pragma once

#if !__has_include(<CLI/CLI.hpp>)
#error "tutti: <tutti/cli.hpp> needs CLI11; link tutti::cli11, which tutti_find_cli11() makes"
#endif

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <istream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/version.h>

#include <tutti/core/detail/fields.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/shell_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/thrown.hpp>
#include <tutti/core/time_or_function.hpp>
#include <tutti/dist/environment.hpp>
#include <tutti/failure.hpp>
#include <tutti/train/options.hpp>
#include <tutti/version.hpp>

/// Options of a training program from its command line and a configuration file, by CLI11.
namespace tutti::cli {

namespace detail {

template <class T>
constexpr bool is_optional = requires(T& value) {
  value.reset();
  value.has_value();
};

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
  throw CLI::ValidationError("expected one of " + known + "; got " + text);
}

inline Precision precision_from(const std::string& text) {
  return text == "amp"    ? Precision::amp_fp16
         : text == "fp16" ? Precision::amp_fp16
         : text == "bf16" ? Precision::amp_bf16
                          : enum_from<Precision>(text);
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
    throw CLI::ValidationError(std::string("expected a ") +
                               (std::is_floating_point_v<T> ? "finite" : "whole") + " number" +
                               (std::is_unsigned_v<T> ? " of 0 or more" : "") + "; got " +
                               (text.empty() ? "nothing" : std::string(text)) +
                               (large ? ", which is beyond the range of its type" : ""));
  }
  return value;
}

// A number without a unit counts epochs, as in the program.
inline Time time_from(const std::string& text) {
  using tutti::detail::parse_time;
  using tutti::detail::TimeProblem;
  const bool is_count = parse_time(text).problem == TimeProblem::missing_unit &&
                        parse_time(text + "ep").problem == TimeProblem::none;
  return Time::parse(is_count ? text + "ep" : text);
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
      throw CLI::ValidationError("expected true, false or auto; got " + text);
    }
    return text == "auto" ? OnOrAuto("auto") : OnOrAuto(text == "true");
  } else if constexpr (std::is_same_v<T, OnOrWarn>) {
    if (text != "true" && text != "false" && text != "warn") {
      throw CLI::ValidationError("expected true, false or warn; got " + text);
    }
    return text == "warn" ? OnOrWarn("warn") : OnOrWarn(text == "true");
  } else if constexpr (std::is_enum_v<T>) {
    return enum_from<T>(text);
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

// "save_folder" as "--save-folder".
inline std::string flag_of(std::string_view member) {
  std::string flag = "--" + std::string(member);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// Which options of a program take several values, and which are true or false.
struct Kinds {
  std::set<std::string> lists{};
  std::set<std::string> switches{};
};

// Reads a file for --config by CLI11's rules, but refuses what it takes one part of: several values
// of one option, in a line or in lines apart, and a switch without a value.
class ConfigFile final : public CLI::ConfigBase {
 public:
  ConfigFile(std::shared_ptr<const Kinds> kinds, const CLI::App& app)
      : kinds_(std::move(kinds)), app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
    std::vector<CLI::ConfigItem> read;
    for (CLI::ConfigItem& item : CLI::ConfigBase::from_config(in)) {
      name(item);
      const auto known = std::find_if(read.begin(), read.end(), [&](const CLI::ConfigItem& one) {
        return one.fullname() == item.fullname();
      });
      if (known == read.end()) {
        read.push_back(std::move(item));
      } else {
        known->inputs.insert(known->inputs.end(), item.inputs.begin(), item.inputs.end());
      }
    }
    std::for_each(read.begin(), read.end(), [this](const auto& item) { check(item); });
    return read;
  }

 private:
  // Members' names have '_' where flags have '-'.
  void name(CLI::ConfigItem& item) const {
    const auto is_known = [this](const std::string& flag) {
      return app_.get_option_no_throw("--" + flag) != nullptr;
    };
    if (!is_known(item.name)) {
      std::string dashed = item.name;
      std::replace(dashed.begin(), dashed.end(), '_', '-');
      if (!item.parents.empty() || !is_known(dashed)) {
        const std::string given =
            item.name == "++" ? "[" + item.parents.back() + "]" : item.fullname();
        throw CLI::ValidationError("--config",
                                   "the file has '" + given +
                                       "', which is no option of this program; expected "
                                       "lines `name = value`, --help lists the names");
      }
      item.name = std::move(dashed);
    }
  }

  void check(const CLI::ConfigItem& item) const {
    if (item.inputs.size() > 1 && !kinds_->lists.contains(item.name)) {
      throw CLI::ValidationError("--" + item.name,
                                 "the file gives it " + std::to_string(item.inputs.size()) +
                                     " values, expected one; put a text with blanks or commas "
                                     "into quotes");
    }
    if (item.inputs == std::vector<std::string>{""} && kinds_->switches.contains(item.name)) {
      throw CLI::ValidationError("--" + item.name, "expected true or false; got nothing");
    }
  }

  std::shared_ptr<const Kinds> kinds_;
  const CLI::App& app_;
};

// Why a configuration file cannot be read; empty: it can.
inline std::string config_problem(const std::string& path) {
  constexpr std::uint64_t most = 1 << 20;
  std::string problem;
  tutti::detail::read_regular_file(path, problem, most);
  return problem.empty() ? problem : "'" + path + "' cannot be read: " + problem;
}

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
  Program(const std::string& name, const std::string& about) : app_(about, name) {
    app_.set_config("--config", "", "a file of options, one `name = value` per line")
        ->take_last()
        ->check(detail::config_problem);
    app_.config_formatter(std::make_shared<detail::ConfigFile>(kinds_, app_));
    app_.allow_config_extras(CLI::config_extras_mode::error);
    app_.add_flag("--print-config", prints_config_,
                  "print all options, as a file for --config, and end")
        ->configurable(false);
    app_.set_version_flag("--version",
                          name + " (tutti " TUTTI_VERSION ", LibTorch " TORCH_VERSION ")",
                          "print the versions of tutti and LibTorch");
  }

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
  void parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      std::exit(app_.exit(error));
    }
    finish();
    if (prints_config_) {
      if (dist::Environment::read().rank == 0) {
        std::printf("%s", text().c_str());
      }
      std::exit(EXIT_SUCCESS);
    }
    if (trainer_ != nullptr) {
      trainer_->command_line.command = tutti::detail::shell_text({argv, argv + argc});
    }
  }

  /// The same for words, without the program's name; prints nothing.
  /// Throws c10::ValueError saying which option is wrong and why.
  void read(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    try {
      app_.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
      TUTTI_CHECK_VALUE(false, error.what());
    }
    finish();
  }

  /// All options with their values, as a file for --config.
  [[nodiscard]] std::string text() const {
    std::string out;
    for (const auto& [name, value] : values()) {
      const auto* words = value.get_if<std::string>();
      if (words == nullptr || !words->empty()) {
        out += name + " = ";
        out += words != nullptr ? '"' + *words + '"'
                                : value.visit([](const auto& v) { return detail::text_of(v); });
        out += '\n';
      }
    }
    return out;
  }

  /// All options with their values.
  [[nodiscard]] std::vector<std::pair<std::string, HyperparameterValue>> values() const {
    std::vector<std::pair<std::string, HyperparameterValue>> out;
    for (const auto& [name, value] : values_) {
      out.emplace_back(name, value());
    }
    return out;
  }

 private:
  template <class T>
  void bind(const std::string& flag, T& value, const std::string& about) {
    const std::string name = flag.substr(2);
    if constexpr (std::is_same_v<T, bool>) {
      app_.add_flag(flag + ",!--no-" + name, value, about)->default_str(value ? "true" : "false");
      kinds_->switches.insert({name, "no-" + name});
    } else if constexpr (detail::is_list<T>) {
      app_.add_option(flag, value, about)->capture_default_str();
      kinds_->lists.insert(name);
    } else {
      const auto read = [&value, flag](const std::string& text) {
        try {
          if constexpr (detail::is_optional<T>) {
            value = detail::value_from<typename T::value_type>(text);
          } else {
            value = detail::value_from<T>(text);
          }
        } catch (const std::exception&) {
          throw CLI::ValidationError(flag, tutti::detail::thrown());
        }
      };
      app_.add_option_function<std::string>(flag, read, about)
          ->type_name(std::is_integral_v<T>         ? "INT"
                      : std::is_floating_point_v<T> ? "FLOAT"
                                                    : "TEXT")
          ->default_str(detail::text_of(value))
          ->take_last();
    }
    values_.emplace_back(name, [&value] { return constant_of(value); });
  }

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

  void finish() {
    if (trainer_ != nullptr) {
      trainer_->hyperparameters = values();
      trainer_->command_line.config = text();
    }
  }

  std::shared_ptr<detail::Kinds> kinds_ = std::make_shared<detail::Kinds>();
  CLI::App app_;
  std::vector<std::pair<std::string, std::function<HyperparameterValue()>>> values_;
  TrainerOptions* trainer_ = nullptr;
  bool prints_config_ = false;
};

inline Program& Program::add(TrainerOptions& options) {
  TrainerOptions& o = options;
  trainer_ = &options;
  o.on_signal = o.on_signal.value_or(OnSignal::exit);
  add("--max-duration", o.max_duration, "how long to train: 10ep or 10, 500ba, 2h");
  add("--min-duration", o.min_duration, "policies cannot stop the run before");
  add("--dry-run", o.dry_run, "so many batches of everything, and no file stays; 0: no");
  add("--overfit-batches", o.overfit_batches, "every epoch is the first so many batches; 0: no");
  add("--sanity-eval", o.sanity_eval,
      "evaluate so many batches before the first is trained; 0: no");
  add("--detect-anomaly", o.detect_anomaly, "end where a gradient becomes nan; slow");
  add("--train-subset-num-batches", o.train_subset_num_batches, "batches of an epoch; -1: all");
  add("--eval-subset-num-batches", o.eval_subset_num_batches, "batches of an evaluation; -1: all");
  add("--eval-interval", o.eval_interval, "how often fit evaluates; 0: never");
  add("--iteration-length", o.iteration_length, "length of an iteration, in ep or tok");
  add("--restore-best-monitor", o.restore_best.monitor, "a metric: fit ends with its best weights");
  add("--restore-best-dataloader-label", o.restore_best.dataloader_label, "the set that it is of");
  add("--restore-best-comparison", o.restore_best.comparison, "by_name, less or greater is better");
  add("--scale-schedule-ratio", o.scale_schedule_ratio, "stretches duration and schedule");
  add("--step-schedule-every-batch", o.step_schedule_every_batch, "else once per epoch");
  add("--schedule-ahead", o.schedule_ahead, "each rate at its own batch, else one batch late");
  add("--device-train-microbatch-size", o.device_train_microbatch_size,
      "examples per forward pass, or auto; 0: the whole batch");
  add("--grad-accum", o.grad_accum, "the same as a number of microbatches");
  add("--accumulate-train-batch-on-tokens", o.accumulate_train_batch_on_tokens,
      "microbatches weigh by tokens");
  add("--fold-into-optimizer", o.fold_into_optimizer, "clip and average in the optimizer's pass");
  add("--autograd-engine", o.autograd_engine, "gradients always by LibTorch's engine");
  add("--allow-idle-policies", o.allow_idle_policies, "accept policies that never act");
  add("--device", o.device, "auto, cpu, cuda, cuda:1");
  add("--precision", o.precision, "fp32, amp_bf16, amp_fp16, bf16_true");
  add("--num-threads", o.num_threads, "within operators; 0: as set; auto: the fastest, same bits");
  add("--cache-cpu-memory", o.cache_cpu_memory, "large tensors get the memory of freed ones");
  add("--cuda-graphs", o.cuda_graphs, "true, false, or auto: where they can be");
  add("--seed", o.seed, "of all random streams; default: random");
  add("--deterministic-mode", o.deterministic_mode,
      "true: refuse what is not deterministic; warn: warn of it");
  add("--tf32", o.tf32, "true, false, or auto: fp32 products of a GPU in TF32");
  add("--cudnn-benchmark", o.cudnn_benchmark, "true, false, or auto: cuDNN tries its algorithms");
  add("--run-name", o.run_name, "default: made of the time and two words");
  add("--run-folder", o.run_folder, "one folder for all files of the run");
  add("--progress-bar", o.progress_bar, "show one");
  add("--log-to-console", o.log_to_console, "print lines instead");
  add("--console-log-interval", o.console_log_interval, "how often to print them");
  add("--dashboard", o.dashboard, "show the run in the browser");
  add("--save-folder", o.save_folder, "where checkpoints go; default: run-folder/checkpoints");
  add("--save-filename", o.save_filename, "their names");
  add("--save-latest-filename", o.save_latest_filename, "the pointer to the newest");
  add("--save-interval", o.save_interval, "how often to save");
  add("--save-overwrite", o.save_overwrite, "go on in a folder with later checkpoints");
  add("--save-weights-only", o.save_weights_only, "save the model alone");
  add("--save-ignore-keys", o.save_ignore_keys, "globs of what is left out");
  add("--save-num-checkpoints-to-keep", o.save_num_checkpoints_to_keep, "newest ones; -1: all");
  add("--save-metrics", o.save_metrics, "save the metrics, too");
  add("--save-async", o.save_async, "write in the background");
  add("--save-on-error", o.save_on_error, "stop or warn when it cannot be written");
  add("--checkpoint-layout", o.checkpoint_layout, "whole, or sharded: every rank writes its part");
  add("--load-path", o.load_path, "a checkpoint to start from");
  add("--load-weights-only", o.load_weights_only, "take its model alone");
  add("--load-strict-model-weights", o.load_strict_model_weights, "names and shapes must agree");
  add("--load-ignore-keys", o.load_ignore_keys, "globs of what is left out");
  add("--autoresume", o.autoresume, "go on from the folder's latest checkpoint");
  add("--on-signal", o.on_signal, "exit, stop or ignore");
  add("--auto-requeue", o.auto_requeue, "after SIGUSR1 in a job of Slurm: run the job again");
  add("--replace-signal-handlers", o.replace_signal_handlers, "also where there are others");
  add("--uneven-ranks", o.uneven_ranks, "on other ranks, some take one example more than others");
  return add("--dist-timeout", o.dist_timeout, "seconds a collective waits for other ranks");
}

}  // namespace tutti::cli
