// Feeds bytes to the readers of data sets: .npy, .npz, tar files of WebDataset, JSON lines, texts,
// CSV, lists of shards, and tokenizer.json with a text to encode.
//
//     fuzz_data_files [corpus folder] [-max_total_time=60] ...
//
// The first byte chooses the reader; the environment variable TUTTI_FUZZ_READER, 0 to 6, chooses it
// for all inputs. Whatever the bytes are, a reader returns or throws c10::Error;
// anything else, a crash or a sanitizer's finding ends the program. All that a data set has is
// read.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <tutti/data/csv.hpp>
#include <tutti/data/lines.hpp>
#include <tutti/data/npy.hpp>
#include <tutti/data/webdataset.hpp>
#ifdef TUTTI_WITH_UTF8PROC
#include <tutti/text/tokenizer.hpp>
#endif

#include "memory_file.hpp"

namespace {

using namespace tutti::data;

template <class Set>
void read_all(const Set& set) {
  for (std::int64_t i = 0; i < set.size(); ++i) {
    try {
      static_cast<void>(set.get(i));
    } catch (const c10::Error&) {
    }
  }
}

// Fits the checksum of each header, since whoever means harm would do so, too.
std::string sealed(std::string tar) {
  for (std::size_t at = 0; at + 512 <= tar.size(); at += 512) {
    if (std::all_of(tar.begin() + at, tar.begin() + at + 512, [](char c) { return c == 0; })) {
      continue;
    }
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) {
      sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(tar[at + i]);
    }
    for (std::size_t i = 0; i < 8; ++i) {
      tar[at + 148 + i] = i < 6 ? static_cast<char>('0' + (sum >> (15 - 3 * i) & 7U)) : '\0';
    }
  }
  return tar;
}

// The file's text ends with a zero, and the text to encode follows.
void tokenize([[maybe_unused]] const std::string& bytes) {
#ifdef TUTTI_WITH_UTF8PROC
  const std::size_t end = std::min(bytes.find('\0'), bytes.size());
  const auto tokenizer = tutti::text::Tokenizer::from_json(bytes.substr(0, end));
  const std::string text = end < bytes.size() ? bytes.substr(end + 1) : "";
  const auto found = tokenizer.encode(text);
  static_cast<void>(tokenizer.decode(found.ids));
  static_cast<void>(tokenizer.encode(text, "pair", {.add_special_tokens = false}));
#endif
}

void read(unsigned kind, const MemoryFile& file, const std::string& bytes) {
  switch (kind) {
    case 0:
      static_cast<void>(load_npy(file.path()));
      static_cast<void>(load_npy(file.path(), {.mmap = true}).to(at::kComplexDouble).sum());
      break;
    case 1:
      static_cast<void>(load_npz(file.path()));
      break;
    case 2: {
      const std::string tar = sealed(bytes) + std::string(512, '\0');
      file.write(tar);
      read_all(WebDataset(std::vector<std::string>{file.path()}));
      break;
    }
    case 3:
      read_all(JsonLines(file.path(), {.empty_lines = EmptyLines::skip}));
      read_all(TextLines(file.path(), {.empty_lines = EmptyLines::skip}));
      break;
    case 4:
      static_cast<void>(read_csv(file.path(), {.missing = MissingValues::keep}));
      break;
    case 5:
      tokenize(bytes);
      break;
    default:
      static_cast<void>(shard_paths(bytes.substr(0, 24)));
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return -1;
  }
  static const MemoryFile file;
  static const char* const only = std::getenv("TUTTI_FUZZ_READER");
  file.write({reinterpret_cast<const char*>(data + 1), size - 1});
  try {
    read((only != nullptr ? static_cast<unsigned>(*only - '0') : data[0]) % 7, file,
         std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  } catch (const c10::Error&) {
  }
  return 0;
}
