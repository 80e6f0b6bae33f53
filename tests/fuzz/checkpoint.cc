// Feeds bytes to the readers of checkpoints: safetensors files, manifests, whole folders.
//
//     fuzz_checkpoint [corpus folder] [-max_total_time=60] ...
//
// The first byte chooses the reader. Whatever the bytes are, a reader returns or throws c10::Error
// or std::invalid_argument; anything else, a crash or a sanitizer's finding ends the program. A
// manifest is given the checksum that fits it, since whoever means harm would do so, too.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include <ATen/ops/ones.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tutti/checkpoint/manifest.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/checkpoint/snapshot.hpp>

#include "memory_file.hpp"

namespace {

using namespace tutti::checkpoint;
namespace detail = tutti::checkpoint::detail;  // headers of LibTorch 2.15 have a ::detail, too

void read_file(const std::uint8_t* data, std::size_t size) {
  static const MemoryFile file;
  file.write({reinterpret_cast<const char*>(data), size});
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : read_safetensors(file.path())) {
    bytes += tensor.nbytes();
  }
  if (bytes > size) {
    std::abort();  // more came out than went in
  }
}

std::string sealed(std::string text) {
  const auto cut = text.rfind(detail::seal);
  if (cut != std::string::npos) {
    text.resize(cut);
  }
  tutti::detail::Xxh64 hash;
  hash.update(text.data(), text.size());
  return text + std::string(detail::seal) + hash.text() + std::string(detail::seal_end);
}

void read_manifest(const std::uint8_t* data, std::size_t size) {
  const Manifest manifest =
      parse_manifest(sealed(std::string(reinterpret_cast<const char*>(data), size)));
  static_cast<void>(detail::from_json(manifest.state, {{"weight", at::ones({2})}}));
}

// The bytes are the manifest of a folder whose other files are sound.
void read_folder(const std::uint8_t* data, std::size_t size) {
  static const std::string folder = [] {
    std::string name = "/dev/shm/tutti-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      std::abort();
    }
    Snapshot snapshot;
    snapshot.model.put("weight", at::ones({2}));
    snapshot.state.put("momentum", at::ones({2}));
    snapshot.state.put("lr", 0.1);
    write_snapshot(name + "/a", snapshot);
    return name + "/a";
  }();
  const std::string text = sealed(std::string(reinterpret_cast<const char*>(data), size));
  detail::remove_tree(folder + "/manifest.json");
  detail::File file = detail::File::create(folder + "/manifest.json");
  file.write(text.data(), text.size());
  file.close();
  static_cast<void>(read_snapshot(folder, {.verify = false}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return -1;
  }
  try {
    switch (data[0] % 3) {
      case 0:
        read_file(data + 1, size - 1);
        break;
      case 1:
        read_manifest(data + 1, size - 1);
        break;
      default:
        read_folder(data + 1, size - 1);
        break;
    }
  } catch (const c10::Error&) {
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
