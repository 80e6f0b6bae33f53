// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/cifar.hpp>

namespace tutti::data::detail {

TUTTI_INLINE std::int64_t count_cifar10_records(const FileReader& file) {
  const auto bytes = static_cast<std::int64_t>(file.size());
  TUTTI_CHECK(bytes > 0 && bytes % cifar10_record == 0, "'", file.path(), "' has ", bytes,
              " bytes, expected a multiple of ", cifar10_record, " and more than 0; ",
              bytes > 0 && bytes % (cifar10_record + 1) == 0
                  ? "these look like the records of CIFAR-100, which have two labels each"
                  : "give the .bin files of CIFAR-10's binary version, unpacked and whole");
  return bytes / cifar10_record;
}

TUTTI_INLINE void read_cifar10_records(const FileReader& file, std::int64_t records,
                                       std::uint8_t* pixels, std::int64_t* labels) {
  const std::string bytes = file.read(0, file.size());
  const char* at = bytes.data();
  for (std::int64_t i = 0; i < records; ++i, at += cifar10_record) {
    const auto label = static_cast<unsigned char>(*at);
    TUTTI_CHECK(label < cifar10_classes.size(), "'", file.path(), "' has label ", int{label},
                " in record ", i,
                ", expected 0 to 9; it is damaged, or no file of CIFAR-10's binary version");
    labels[i] = label;
    std::memcpy(pixels + i * cifar10_pixels, at + 1, cifar10_pixels);
  }
}

}  // namespace tutti::data::detail

namespace tutti::data {

TUTTI_INLINE ImageSet load_cifar10_batches(const std::vector<std::string>& files) {
  TUTTI_CHECK_VALUE(!files.empty(),
                    "load_cifar10_batches: there are no files, expected one or more");
  std::vector<std::unique_ptr<detail::FileReader>> open;
  std::vector<std::int64_t> counts;
  std::int64_t all = 0;
  for (const std::string& path : files) {
    open.push_back(std::make_unique<detail::FileReader>(path));
    counts.push_back(detail::count_cifar10_records(*open.back()));
    all += counts.back();
  }
  ImageSet out{
      at::detail::empty_cpu({all, 3, 32, 32}, at::kByte, /*pin_memory=*/false, std::nullopt),
      at::detail::empty_cpu({all}, at::kLong, /*pin_memory=*/false, std::nullopt),
      {cifar10_classes.begin(), cifar10_classes.end()}};
  auto* pixels = out.images.mutable_data_ptr<std::uint8_t>();
  auto* labels = out.labels.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < open.size(); ++i) {
    detail::read_cifar10_records(*open[i], counts[i], pixels, labels);
    pixels += counts[i] * detail::cifar10_pixels;
    labels += counts[i];
  }
  return out;
}

TUTTI_INLINE ImageSet load_cifar10(const std::string& folder, Split split) {
  TUTTI_CHECK(
      detail::is_folder(folder), "'", folder,
      "' is no folder; expected the one with "
      "CIFAR-10's data_batch_1.bin to data_batch_5.bin and test_batch.bin (single files are "
      "read by load_cifar10_batches)");
  std::vector<std::string> files;
  for (const auto& [name, is_folder] : detail::list_folder(folder)) {
    const bool wanted = split == Split::train
                            ? name.starts_with("data_batch_") && name.ends_with(".bin")
                            : name == "test_batch.bin";
    if (wanted && !is_folder) {
      files.push_back(folder + "/" + name);
    }
  }
  TUTTI_CHECK(!files.empty(), "'", folder, "' has no ",
              split == Split::train ? "data_batch_*.bin" : "test_batch.bin",
              "; expected the folder of CIFAR-10's binary version, cifar-10-batches-bin, unpacked");
  return load_cifar10_batches(files);
}

}  // namespace tutti::data
