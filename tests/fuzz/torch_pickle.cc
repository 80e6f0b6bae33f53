// Feeds bytes to the reader of torch.save()'s files.
//
//     fuzz_torch_pickle [corpus folder] [-max_total_time=60] ...
//
// The first byte chooses: the bytes are the whole file, or its pickle in a sound archive with two
// storages. Whatever they are, the reader returns tensors whose every element lies inside the file,
// which are all read here, or throws c10::Error; anything else, a crash or a sanitizer's finding
// ends the program.

#include <cstddef>
#include <cstdint>
#include <string>

#include <tutti/checkpoint/torch_pickle.hpp>

#include "../support/torch_archive.hpp"
#include "memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return -1;
  }
  static const MemoryFile file;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  file.write(data[0] % 2 == 0
                 ? bytes
                 : torch_archive::file(bytes, {{"0", std::string(24, '\1')}, {"1", ""}}));
  try {
    for (const auto& tensor : tutti::checkpoint::stored_in_torch_file(file.path())) {
      const unsigned char* const first = tensor.file->data() + tensor.offset;
      unsigned sum = 0;
      for (std::uint64_t i = 0; i < tensor.extent; ++i) {
        sum += first[i];
      }
      volatile unsigned sink = sum;
      static_cast<void>(sink);
    }
  } catch (const c10::Error&) {
  }
  return 0;
}
