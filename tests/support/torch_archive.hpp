// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes files of torch.save() byte by byte, right ones and wrong ones.
//
//     const std::string bytes = torch_archive::file(
//         torch_archive::dict({{"a", torch_archive::tensor("FloatStorage", "0", 4, 0, {2, 2}, {2,
//         1})}}),
//         {{"0", std::string(16, '\0')}});

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace torch_archive {

using Entries = std::vector<std::pair<std::string, std::string>>;

inline std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i, value >>= 8) {
    out += static_cast<char>(value & 0xFF);
  }
  return out;
}

struct ZipOptions {
  std::uint64_t method = 0;  ///< 0: stored
  std::uint64_t flags = 0;
  bool wide = false;  ///< sizes and places in the fields of 64 bits
};

/// A zip archive of these files. Checksums are 0.
inline std::string zip(const Entries& entries, const ZipOptions& options = {}) {
  std::string out;
  std::string directory;
  for (const auto& [name, bytes] : entries) {
    const std::uint64_t place = out.size();
    const std::uint64_t size = bytes.size();
    const std::string start = little(options.flags, 2) + little(options.method, 2) + little(0, 8);
    const std::string padding(5, 'p');  // an extra field, as torch.save() aligns data with
    out += "PK\x03\x04" + little(20, 2) + start + little(size, 4) + little(size, 4) +
           little(name.size(), 2) + little(4 + padding.size(), 2) + name + "FB" +
           little(padding.size(), 2) + padding + bytes;
    const std::uint64_t all = 0xFFFFFFFF;
    const std::string extra = options.wide ? little(1, 2) + little(24, 2) + little(size, 8) +
                                                 little(size, 8) + little(place, 8)
                                           : "";
    directory += "PK\x01\x02" + little(20, 2) + little(20, 2) + start +
                 little(options.wide ? all : size, 4) + little(options.wide ? all : size, 4) +
                 little(name.size(), 2) + little(extra.size(), 2) + little(0, 10) +
                 little(options.wide ? all : place, 4) + name + extra;
  }
  const std::uint64_t at = out.size();
  const std::uint64_t end = at + directory.size();
  out += directory;
  if (options.wide) {
    out += "PK\x06\x06" + little(44, 8) + little(0, 12) + little(entries.size(), 8) +
           little(entries.size(), 8) + little(directory.size(), 8) + little(at, 8);
    out += "PK\x06\x07" + little(0, 4) + little(end, 8) + little(1, 4);
  }
  const std::uint64_t count = options.wide ? 0xFFFF : entries.size();
  return out + "PK\x05\x06" + little(0, 4) + little(count, 2) + little(count, 2) +
         little(options.wide ? 0xFFFFFFFF : directory.size(), 4) +
         little(options.wide ? 0xFFFFFFFF : at, 4) + little(0, 2);
}

/// The file of torch.save() with that pickle and those storages.
inline std::string file(const std::string& pickle, const Entries& storages,
                        const std::string& byteorder = "little") {
  Entries entries{{"archive/data.pkl", pickle}};
  if (!byteorder.empty()) {
    entries.emplace_back("archive/byteorder", byteorder);
  }
  for (const auto& [name, bytes] : storages) {
    entries.emplace_back("archive/data/" + name, bytes);
  }
  entries.emplace_back("archive/version", "3\n");
  return zip(entries);
}

// Instructions of a pickle: each gives a value.

inline std::string text(const std::string& value) {
  return 'X' + little(value.size(), 4) + value;
}
inline std::string number(std::int64_t value) {
  return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8);
}
inline std::string global(const std::string& module, const std::string& name) {
  return 'c' + module + '\n' + name + '\n';
}
inline std::string tuple(const std::vector<std::string>& values) {
  std::string out = "(";
  for (const std::string& value : values) {
    out += value;
  }
  return out + 't';
}
inline std::string numbers(const std::vector<std::int64_t>& values) {
  std::vector<std::string> out;
  for (const std::int64_t value : values) {
    out.push_back(number(value));
  }
  return tuple(out);
}
inline std::string call(const std::string& what, const std::string& arguments) {
  return what + arguments + 'R';
}
inline std::string dict(const Entries& members) {
  std::string out = "}(";
  for (const auto& [name, value] : members) {
    out += text(name) + value;
  }
  return out + 'u';
}
inline std::string storage(const std::string& type, const std::string& key, std::int64_t size) {
  return tuple({text("storage"), global("torch", type), text(key), text("cpu"), number(size)}) +
         'Q';
}
inline std::string tensor(const std::string& type, const std::string& key, std::int64_t size,
                          std::int64_t offset, const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides) {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              tuple({storage(type, key, size), number(offset), numbers(shape), numbers(strides),
                     "\x89", call(global("collections", "OrderedDict"), ")")}));
}

/// The pickle whose value is `value`.
inline std::string pickle(const std::string& value) {
  return "\x80\x02" + value + '.';
}

}  // namespace torch_archive
