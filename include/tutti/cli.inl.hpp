// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <istream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/version.h>

#include <tutti/cli.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/shell_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/thrown.hpp>
#include <tutti/dist/environment.hpp>
#include <tutti/version.hpp>

namespace tutti::cli {

namespace detail {

TUTTI_INLINE void refuse(const std::string& expected, std::string_view got) {
  tutti::detail::raise<c10::ValueError>({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                                        c10::str("expected ", expected, "; got ", got));
}

TUTTI_INLINE Precision precision_from(const std::string& text) {
  return text == "amp"    ? Precision::amp_fp16
         : text == "fp16" ? Precision::amp_fp16
         : text == "bf16" ? Precision::amp_bf16
                          : enum_from<Precision>(text);
}

TUTTI_INLINE Time time_from(const std::string& text) {
  using tutti::detail::parse_time;
  using tutti::detail::TimeProblem;
  const bool is_count = parse_time(text).problem == TimeProblem::missing_unit &&
                        parse_time(text + "ep").problem == TimeProblem::none;
  return Time::parse(is_count ? text + "ep" : text);
}

TUTTI_INLINE std::string flag_of(std::string_view member) {
  std::string flag = "--" + std::string(member);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// Which options of a program take several values, and which are true or false.
struct Kinds {
  std::map<std::string, const std::vector<std::string>*, std::less<>> lists{};
  std::set<std::string> switches{};
};

TUTTI_INLINE std::string trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  const std::size_t first = std::min(text.find_first_not_of(blank), text.size());
  text.remove_prefix(first);
  return std::string(text.substr(0, text.find_last_not_of(blank) + 1));
}

// A text between quotation marks as TOML has it, in the double ones \" and \\ for " and \, \u000A
// and \u000D for ends of lines, and a comment behind it; nothing of other values.
TUTTI_INLINE std::optional<std::string> quoted_text(const std::string& value) {
  if (value.empty() || (value[0] != '"' && value[0] != '\'')) {
    return std::nullopt;
  }
  const char mark = value[0];
  std::string out;
  for (std::size_t i = 1; i < value.size(); ++i) {
    if (value[i] == mark) {
      const std::string behind = trimmed(std::string_view(value).substr(i + 1));
      return behind.empty() || behind[0] == '#' ? std::optional(out) : std::nullopt;
    }
    const std::string_view rest = std::string_view(value).substr(i);
    if (mark == '"' && (rest.starts_with("\\u000A") || rest.starts_with("\\u000D"))) {
      out += rest[5] == 'A' ? '\n' : '\r';
      i += 5;
      continue;
    }
    const bool escapes = mark == '"' && value[i] == '\\' && i + 1 < value.size() &&
                         (value[i + 1] == '"' || value[i + 1] == '\\');
    i += escapes ? 1 : 0;
    out += value[i];
  }
  return std::nullopt;
}

TUTTI_INLINE std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += c == '\n' ? "\\u000A" : "\\u000D";
      continue;
    }
    out += c == '"' || c == '\\' ? "\\" : "";
    out += c;
  }
  return out += '"';
}

// Reads a file for --config by CLI11's rules, but refuses what it takes one part of: several values
// of one option, in a line or in lines apart, and a switch without a value.
class ConfigFile final : public CLI::ConfigBase {
 public:
  ConfigFile(std::shared_ptr<const Kinds> kinds, const CLI::App& app)
      : kinds_(std::move(kinds)), app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
    std::vector<CLI::ConfigItem> given;
    std::stringstream others;
    bool in_section = false;
    for (std::string line; std::getline(in, line);) {
      CLI::ConfigItem item;
      item.name = trimmed(std::string_view(line).substr(0, line.find('=')));
      in_section = in_section || item.name.starts_with('[');
      const auto text = in_section || !may_be_quoted(item.name) || line.find('=') == line.npos
                            ? std::nullopt
                            : quoted_text(trimmed(line.substr(line.find('=') + 1)));
      if (text) {  // CLI11 2.1 ends it at a # and knows no \"
        item.inputs = {*text};
        given.push_back(std::move(item));
      } else {
        others << line << '\n';
      }
    }
    for (CLI::ConfigItem& item : CLI::ConfigBase::from_config(others)) {
      given.push_back(std::move(item));
    }
    std::vector<CLI::ConfigItem> read;
    for (CLI::ConfigItem& item : given) {
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
  [[nodiscard]] bool may_be_quoted(std::string flag) const {
    std::replace(flag.begin(), flag.end(), '_', '-');
    return flag.find_first_not_of(
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == flag.npos;
  }

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
TUTTI_INLINE std::string config_problem(const std::string& path) {
  constexpr std::uint64_t most = 1 << 20;
  std::string problem;
  tutti::detail::read_regular_file(path, problem, most);
  return problem.empty() ? problem : "'" + path + "' cannot be read: " + problem;
}

class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& about) : app(about, name) {
    app.set_config("--config", "", "a file of options, one `name = value` per line")
        ->take_last()
        ->check(config_problem);
    app.config_formatter(std::make_shared<ConfigFile>(kinds, app));
    app.allow_config_extras(CLI::config_extras_mode::error);
    app.add_flag("--print-config", prints_config,
                 "print all options, as a file for --config, and end")
        ->configurable(false);
    app.set_version_flag("--version",
                         name + " (tutti " TUTTI_VERSION ", LibTorch " TORCH_VERSION ")",
                         "print the versions of tutti and LibTorch");
  }

  // As CLI11 takes them. `--name=` becomes two words, since CLI11 takes the next one as its value.
  [[nodiscard]] std::vector<std::string> last_first(std::vector<std::string> words) const {
    for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
      if (words[i].starts_with("--") && words[i].find('=') == words[i].size() - 1) {
        words[i].pop_back();
        words.insert(words.begin() + static_cast<std::ptrdiff_t>(++i), std::string());
      }
    }
    std::reverse(words.begin(), words.end());
    return words;
  }

  std::shared_ptr<Kinds> kinds = std::make_shared<Kinds>();
  CLI::App app;
  bool prints_config = false;
};

}  // namespace detail

TUTTI_INLINE Program::Program(const std::string& name, const std::string& about)
    : line_(std::make_unique<detail::CommandLine>(name, about)) {}
TUTTI_INLINE Program::~Program() = default;

TUTTI_INLINE void Program::parse(int argc, const char* const* argv) {
  try {
    line_->app.parse(line_->last_first({argv + std::min(argc, 1), argv + argc}));
  } catch (const CLI::ParseError& error) {
    std::exit(line_->app.exit(error));
  }
  finish();
  if (line_->prints_config) {
    if (dist::Environment::read().rank == 0) {
      std::printf("%s", text().c_str());
    }
    std::exit(EXIT_SUCCESS);
  }
  if (trainer_ != nullptr) {
    trainer_->command_line.command = tutti::detail::shell_text({argv, argv + argc});
  }
}

TUTTI_INLINE void Program::read(std::vector<std::string> words) {
  try {
    line_->app.parse(line_->last_first(std::move(words)));
  } catch (const CLI::ParseError& error) {
    TUTTI_CHECK_VALUE(false, error.what());
  }
  finish();
}

TUTTI_INLINE std::string Program::text() const {
  std::string out;
  for (const auto& [name, value] : values()) {
    const auto* words = value.get_if<std::string>();
    if (const auto list = line_->kinds->lists.find(name); list != line_->kinds->lists.end()) {
      for (const std::string& one : *list->second) {
        out += name + " = " + detail::in_quotes(one) + '\n';
      }
    } else if (words == nullptr) {
      out += name + " = " + value.visit([](const auto& v) { return detail::text_of(v); }) + '\n';
    } else if (const CLI::Option* option = line_->app.get_option_no_throw("--" + name);
               !words->empty() || (option != nullptr && !option->get_default_str().empty())) {
      out += name + " = " + detail::in_quotes(*words) + '\n';
    }
  }
  return out;
}

TUTTI_INLINE std::vector<std::pair<std::string, HyperparameterValue>> Program::values() const {
  std::vector<std::pair<std::string, HyperparameterValue>> out;
  for (const auto& [name, value] : values_) {
    out.emplace_back(name, value());
  }
  return out;
}

TUTTI_INLINE void Program::add_value(const std::string& flag, detail::Described option) {
  const auto read = [read = std::move(option.read), flag](const std::string& text) {
    try {
      read(text);
    } catch (const std::exception&) {
      throw CLI::ValidationError(flag, tutti::detail::thrown());
    }
  };
  line_->app.add_option_function<std::string>(flag, read, option.about)
      ->type_name(option.type)
      ->default_str(option.default_text)
      ->take_last();
}

TUTTI_INLINE void Program::add_list(const std::string& flag, std::vector<std::string>& value,
                                    const std::string& about) {
  line_->app.add_option(flag, value, about)->capture_default_str();
  line_->kinds->lists.emplace(flag.substr(2), &value);
}

TUTTI_INLINE void Program::add_switch(const std::string& flag, bool& value,
                                      const std::string& about) {
  const std::string name = flag.substr(2);
  line_->app.add_flag(flag + ",!--no-" + name, value, about)->default_str(value ? "true" : "false");
  line_->kinds->switches.insert({name, "no-" + name});
}

TUTTI_INLINE void Program::finish() {
  if (trainer_ != nullptr) {
    trainer_->hyperparameters = values();
    trainer_->command_line.config = text();
  }
}

TUTTI_INLINE Program& Program::add(TrainerOptions& options) {
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
