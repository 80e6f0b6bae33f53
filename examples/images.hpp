// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where the examples for images get them from.

#include <cstdint>
#include <filesystem>
#include <string>

#include <torch/torch.h>

#include <tutti/data/cifar.hpp>
#include <tutti/data/image_folder.hpp>
#include <tutti/data/image_set.hpp>
#include <tutti/data/split.hpp>

namespace example {

constexpr const char* where_images_are =
    "PATH is\n"
    "  - the folder cifar-10-batches-bin: unpack https://www.cs.toronto.edu/~kriz/cifar.html's\n"
    "    binary version of CIFAR-10;\n"
    "  - or a folder or .tar of images, train/CLASS/NAME.jpg and test/CLASS/NAME.jpg (or .png);\n"
    "  - or the word demo: simple images are generated, to see the program run.\n";

/// Ten coarse patterns, and noise on them: uint8 [n, 3, 32, 32].
inline tutti::data::ImageSet demo_images(std::int64_t n) {
  torch::manual_seed(0);
  const at::Tensor patterns = torch::rand({10, 3, 2, 2});
  torch::manual_seed(static_cast<std::uint64_t>(n));
  const at::Tensor labels = torch::randint(10, {n}, torch::kLong);
  const at::Tensor images =
      patterns.index_select(0, labels).repeat_interleave(16, 2).repeat_interleave(
          16, 3);  // [n, 3, 32, 32]
  const at::Tensor noisy = images + 0.1 * torch::randn_like(images);
  return {noisy.clamp(0, 1).mul(255).to(torch::kByte),
          labels,
          {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}};
}

/// The images of one part, uint8 [N, 3, 32, 32]. Throws c10::Error where they cannot be read.
inline tutti::data::ImageSet load(const std::string& path, tutti::data::Split split) {
  const bool train = split == tutti::data::Split::train;
  if (path == "demo") {
    return demo_images(train ? 768 : 256);
  }
  if (std::filesystem::exists(path + "/test_batch.bin")) {
    return tutti::data::load_cifar10(path, split);
  }
#if defined(TUTTI_WITH_JPEG) || defined(TUTTI_WITH_PNG)
  return tutti::data::load_image_folder(path, {.prefix = train ? "train" : "test", .size = 32});
#else
  TORCH_CHECK(false, "'", path, "' has no test_batch.bin, and this program was built without ",
              "libjpeg and libpng; for JPEG images install libjpeg-dev, for PNG libpng-dev, then "
              "configure and build again");
#endif
}

}  // namespace example
