// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include <tutti/config.hpp>
#include <tutti/core/detail/crc.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/loggers/detail/png.hpp>
#include <tutti/loggers/detail/protobuf.hpp>
#include <tutti/loggers/detail/text.hpp>

// TensorBoard's event files: records that each hold an Event message. The numbers of the fields
// are those of tensorboard/compat/proto: event, summary, tensor, types; plugins/hparams.
namespace tutti::detail::tensorboard {

// A record of an event file: length, its CRC, the data, its CRC.
std::string record(std::string_view data);

// An event without its content. time: seconds since 1970.
Message event(double time, std::int64_t step);

// The first event of a file.
inline Message version(double time) {
  return event(time, 0).bytes(3, "brain.Event:2");
}

// Tells that what other files have from this step on is from a run that crashed.
inline Message restart(double time, std::int64_t step) {
  return event(time, step).message(7, Message().number(1, /*START*/ 1));
}

// Values of a Summary, of which an event holds any number.
Message scalar(std::string_view tag, double value);
Message image(std::string_view tag, const Picture& picture);

// A value that belongs to a plugin, which finds `content` in the metadata.
Message of_plugin(std::string_view tag, std::string_view plugin, std::string_view content);

// Markdown, shown under "Text".
Message text(std::string_view tag, std::string_view markdown);

// What the HParams page needs: what a session began with, and how it ended.
Message session_start(const Config& config, double time);
Message session_end(bool failed, double time);

// A table as Markdown.
std::string markdown(const LoggedTable& table);

}  // namespace tutti::detail::tensorboard

#if TUTTI_BODIES

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

#endif
