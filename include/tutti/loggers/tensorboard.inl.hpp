// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/tensorboard.hpp>

namespace tutti::detail::tensorboard {

TUTTI_INLINE std::string record(std::string_view data) {
  const auto little_endian = [](std::uint64_t value, int bytes) {
    std::string out;
    for (int i = 0; i < bytes; ++i) {
      out += static_cast<char>(value >> (8 * i));
    }
    return out;
  };
  const auto masked = [&](std::string_view text) {
    const std::uint32_t crc = crc32c(text);
    return little_endian((crc >> 15 | crc << 17) + 0xA282EAD8U, 4);
  };
  const std::string length = little_endian(data.size(), 8);
  std::string out = length + masked(length);
  out.append(data);
  return out + masked(data);
}

TUTTI_INLINE Message event(double time, std::int64_t step) {
  Message out;
  out.real(1, time);
  if (step != 0) {
    out.number(2, step);
  }
  return out;
}

TUTTI_INLINE Message scalar(std::string_view tag, double value) {
  const bool plain = std::ranges::all_of(tag, [](unsigned char c) { return c < 0x80; });
  Message out;
  if (plain) {
    out.bytes(1, tag);
  } else {
    out.bytes(1, utf8(tag));
  }
  return out.real(2, static_cast<float>(value));
}

TUTTI_INLINE Message image(std::string_view tag, const Picture& picture) {
  return Message().bytes(1, tag).message(4, Message()
                                                .number(1, picture.height)
                                                .number(2, picture.width)
                                                .number(3, picture.channels)
                                                .bytes(4, png(picture)));
}

TUTTI_INLINE Message of_plugin(std::string_view tag, std::string_view plugin,
                               std::string_view content) {
  return Message().bytes(1, tag).message(
      9, Message().message(1, Message().bytes(1, plugin).bytes(2, content)));
}

TUTTI_INLINE Message text(std::string_view tag, std::string_view markdown) {
  const Message shape = Message().message(2, Message().number(1, 1));  // [1]
  return of_plugin(tag, "text", {})
      .message(8, Message().number(1, /*DT_STRING*/ 7).message(2, shape).bytes(8, utf8(markdown)));
}

TUTTI_INLINE Message session_start(const Config& config, double time) {
  Message session;
  for (const auto& [name, value] : config) {
    Message held;  // google.protobuf.Value
    value.visit([&](const auto& v) {
      using T = std::decay_t<decltype(v)>;
      if constexpr (std::is_same_v<T, bool>) {
        held.number(4, v);
      } else if constexpr (std::is_same_v<T, std::string>) {
        held.bytes(3, utf8(v));
      } else {
        held.real(2, static_cast<double>(v));
      }
    });
    session.message(1, Message().bytes(1, utf8(name)).message(2, held));
  }
  session.real(5, time);
  return of_plugin("_hparams_/session_start_info", "hparams",
                   Message().message(3, session).bytes());
}

TUTTI_INLINE Message session_end(bool failed, double time) {
  const Message session = Message().number(1, failed ? 2 : 1).real(2, time);
  return of_plugin("_hparams_/session_end_info", "hparams", Message().message(4, session).bytes());
}

TUTTI_INLINE std::string markdown(const LoggedTable& table) {
  const auto row = [](const auto& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) {
      out += ' ';
      for (const char c : cell) {
        if (c == '|' || c == '\\') {
          out += '\\';
        }
        out += c == '\n' ? "<br>" : c == '\r' ? "" : std::string(1, c);
      }
      out += " |";
    }
    return out + "\n";
  };
  std::string out = row(table.columns) + "|";
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    out += "---|";
  }
  out += "\n";
  for (const auto& cells : table.rows) {
    out += row(cells);
  }
  return out;
}

}  // namespace tutti::detail::tensorboard

namespace tutti {

TUTTI_INLINE void TensorBoardLogger::apply(Init, const State& state) {
  run.speaks = state.rank == 0 || !rank_zero_only;
  if (run.speaks) {
    run.file.open(std::string(name), free_file(state), "log_dir");
    write(detail::tensorboard::version(now()));
  }
}

TUTTI_INLINE void TensorBoardLogger::apply(AfterLoad, const State& state) {
  if (state.timestamp.batch > 0 && run.speaks) {
    write(detail::tensorboard::restart(now(), state.timestamp.batch));
  }
  run.file.begin(/*resumed=*/true, /*overwrite=*/false);
  run.latest.give_again(state, *this);
}

TUTTI_INLINE void TensorBoardLogger::apply(BatchEnd, const State& state) {
  if (run.step < state.timestamp.batch) {
    write_summary();
  }
  if (state.timestamp.batch % flush_interval == 0) {
    run.file.flush();
    upload(state);
  }
}

TUTTI_INLINE void TensorBoardLogger::apply(EpochEnd, const State& state) {
  flush();
  upload(state);
}

TUTTI_INLINE void TensorBoardLogger::apply(EvalEnd, const State& state) {
  write_config(state.timestamp.batch);
  at_step(state.timestamp.batch);
  for (const auto& [key, value] : run.results) {
    run.summary.message(1, detail::tensorboard::scalar("hparams/" + key, value));
  }
  flush();
  upload(state);
}

TUTTI_INLINE void TensorBoardLogger::apply(FitEnd, const State& state) {
  flush();
  run.file.sync();
  upload(state);
}

TUTTI_INLINE void TensorBoardLogger::close(const State& state) {
  if (run.file.is_open()) {
    write_config(state.timestamp.batch);
    at_step(state.timestamp.batch);
    add(detail::tensorboard::session_end(detail::run_failed(), now()));
    flush();
    const bool written = run.file.has_begun();
    run.file.close();
    if (written) {
      upload(state);
    }
  }
}

TUTTI_INLINE void TensorBoardLogger::log_metrics(std::span<const LoggedMetric> metrics,
                                                 std::int64_t step) {
  if (!run.speaks) {
    return;
  }
  at_step(step);
  run.latest.add(metrics, step);
  for (const LoggedMetric& metric : metrics) {
    add(detail::tensorboard::scalar(metric.name, metric.value));
    if (metric.name.find("metric") != std::string_view::npos ||
        metric.name.find("loss") != std::string_view::npos) {
      run.results.set(metric.name, metric.value);
    }
  }
}

TUTTI_INLINE void TensorBoardLogger::log_images(const LoggedImages& images, std::int64_t step) {
  if (!run.speaks) {
    return;
  }
  try {
    const detail::Picture grid = detail::picture_grid(images);
    at_step(step);
    add(detail::tensorboard::image(detail::utf8(images.name), grid));
  } catch (const c10::Error& error) {
    if (!std::exchange(run.image_refused, true)) {
      TORCH_WARN("TensorBoardLogger: ", error.what_without_backtrace());
    }
  }
}

TUTTI_INLINE void TensorBoardLogger::log_table(const LoggedTable& table, std::int64_t step) {
  if (run.speaks) {
    at_step(step);
    add(detail::tensorboard::text(detail::utf8(table.name) + "/text_summary",
                                  detail::tensorboard::markdown(table)));
  }
}

TUTTI_INLINE double TensorBoardLogger::now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TUTTI_INLINE std::string TensorBoardLogger::free_file(const State& state) const {
  const bool own = log_dir.empty() && !state.run_folder.empty();
  std::string folder = own ? state.run_folder + "/tensorboard"
                           : (log_dir.empty() ? "tensorboard_logs" : run_path(log_dir, state)) +
                                 "/" + state.run_name;
  folder = state.output_path(folder);
  folder += state.rank == 0 ? "" : "/rank" + std::to_string(state.rank);
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  std::string seconds = std::to_string(static_cast<std::int64_t>(now()));
  seconds.insert(0, 10 - std::min<std::size_t>(10, seconds.size()), '0');
  const std::string path = folder + "/events.out.tfevents." + seconds + "." +
                           (*host == '\0' ? "localhost" : host) + "." + std::to_string(::getpid()) +
                           ".";
  int i = 0;
  std::error_code error;
  while (std::filesystem::exists(path + std::to_string(i), error)) {
    ++i;
  }
  return path + std::to_string(i);
}

TUTTI_INLINE void TensorBoardLogger::upload(const State& state) const {
  const std::string& path = run.file.path();
  if (run.speaks) {
    detail::upload_file("tensorboard_logs/" + state.run_name +
                            (state.rank == 0 ? "" : "/rank" + std::to_string(state.rank)) +
                            path.substr(path.rfind('/')),
                        path, state);
  }
}

TUTTI_INLINE void TensorBoardLogger::at_step(std::int64_t step) {
  if (step != run.step) {
    write_summary();
    run.step = step;
  }
}

TUTTI_INLINE void TensorBoardLogger::write_summary() {
  if (!run.summary.empty()) {
    write(detail::tensorboard::event(now(), run.step).message(5, run.summary));
    run.summary.clear();
  }
}

TUTTI_INLINE void TensorBoardLogger::flush() {
  write_summary();
  run.file.flush();
}

TUTTI_INLINE void TensorBoardLogger::write_config(std::int64_t step) {
  if (!run.speaks || run.config.empty() || std::exchange(run.config_written, true)) {
    return;
  }
  const std::vector<std::string> columns{"name", "value"};
  std::vector<std::vector<std::string>> rows;
  for (const auto& [key, value] : run.config) {
    rows.push_back({key, detail::hyperparameter_text(value)});
  }
  log_table({.name = "hyperparameters", .columns = columns, .rows = rows}, step);
  add(detail::tensorboard::session_start(run.config, now()));
}

}  // namespace tutti
