// Feeds bytes to the reader of sharded checkpoints.
//
//     fuzz_sharded_files [corpus folder] [-max_total_time=60] ...
//
// The bytes are one or two safetensors files of a folder: the first two bytes say where the first
// ends. Each tensor is read whole and by boxes. Whatever the bytes are, the reader returns or
// throws c10::Error; anything else, a crash or a sanitizer's finding ends the program.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include <tutti/checkpoint/sharded_files.hpp>

namespace {

using namespace tutti::checkpoint;

const std::string& folder() {
  static const std::string name = [] {
    std::string made = "/dev/shm/tutti-fuzz-XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) {
      std::abort();
    }
    return made;
  }();
  return name;
}

void write(const std::string& name, const std::uint8_t* data, std::size_t size) {
  const std::string path = folder() + '/' + name;
  ::unlink(path.c_str());
  if (size > 0) {
    const int file = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
    if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) {
      std::abort();
    }
    ::close(file);
  }
}

void read(std::size_t size) {
  const ShardedFiles files(folder());
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : files.tensors()) {
    bytes += files.read(name).nbytes();
    for (std::size_t dim = 0; dim < tensor.shape().size(); ++dim) {
      for (const int rank : {0, 2}) {
        files.read(name, shard_box(tensor.shape(), rank, 3, dim));
      }
    }
  }
  if (bytes > size) {
    std::abort();  // more came out than went in
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return -1;
  }
  const std::size_t first = std::min<std::size_t>(data[0] * 256U + data[1], size - 2);
  write("shard-00001-model-00001-of-00001.safetensors", data + 2, first);
  write("shard-00002-model-00001-of-00001.safetensors", data + 2 + first, size - 2 - first);
  try {
    read(size);
  } catch (const c10::Error&) {
  }
  return 0;
}
