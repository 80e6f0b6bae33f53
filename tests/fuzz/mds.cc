// Feeds bytes to the reader of MDS shards and of their index.
//
//     fuzz_mds [corpus folder] [-max_total_time=60] ...
//
// The first two bytes say how long the index is, index.json; the first shard that it lists follows.
// Whatever the bytes are, the reader returns or throws c10::Error; anything else, a crash or a
// sanitizer's finding ends the program. Every column of every sample is read.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/data/mds.hpp>

namespace {

using namespace tutti::data;

template <class Read>
void tried(const Read& read) {
  try {
    static_cast<void>(read());
  } catch (const c10::Error&) {
  }
}

void read_sample(const MDSSample& sample) {
  for (const MDSColumn& column : sample.columns()) {
    tried([&] { return sample.bytes(column.name); });
    tried([&] { return sample.text(column.name); });
    tried([&] { return sample.integer(column.name); });
    tried([&] { return sample.number(column.name); });
    tried([&] { return sample.tensor(column.name); });
    tried([&] { return sample.tensors(column.name); });
  }
  tried([&] { return sample.batch(); });
}

void read(std::string_view index, std::string_view bytes) {
  std::vector<MDSShard> shards = tutti::data::detail::mds_index(index, "'index.json': ");
  if (shards.empty() || bytes.size() < 8) {
    return;
  }
  MDSShard shard = std::move(shards[0]);
  if (shard.zip) {
    shard.zip->bytes = std::ssize(bytes);
    tried([&] { return tutti::data::detail::unzip_mds(shard, bytes, "'shard': "); });
  }
  // Fits sizes, since whoever means harm would do so, too.
  std::uint32_t samples = 0;
  std::memcpy(&samples, bytes.data(), sizeof samples);
  if (8 + 4 * std::uint64_t{samples} > bytes.size()) {
    return;  // what the index is refused for
  }
  shard.raw.bytes = std::ssize(bytes);
  shard.samples = samples;
  const auto open = std::make_shared<const tutti::data::detail::MDSBytes>(
      std::make_shared<const MDSShard>(std::move(shard)), nullptr, bytes, "'shard': ");
  for (std::int64_t i = 0; i < open->shard().samples; ++i) {
    tried([&] {
      read_sample(MDSSample(open, i));
      return 0;
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return -1;
  }
  // Copies of their own, so that reading past the end of one is found.
  const std::size_t length = std::min<std::size_t>(data[0] + 256U * data[1], size - 2);
  const std::string index(reinterpret_cast<const char*>(data + 2), length);
  const std::vector<char> shard(data + 2 + length, data + size);
  try {
    read(index, {shard.data(), shard.size()});
  } catch (const c10::Error&) {
  }
  return 0;
}
