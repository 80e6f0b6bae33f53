// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/file_reader.hpp>
#include <tutti/data/image_set.hpp>

/// CIFAR-10 in its binary layout: records of 3,073 bytes, a label from 0 to 9 and 32 x 32 pixels,
/// all red ones first, then green, then blue, row by row.
/// Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
namespace tutti::data {

/// Which part of a data set.
enum class Split : std::uint8_t { train, test };

/// The names of CIFAR-10's classes, by label.
inline constexpr std::array<std::string_view, 10> cifar10_classes{
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};

namespace detail {

inline constexpr std::int64_t cifar10_pixels = 3 * 32 * 32;
inline constexpr std::int64_t cifar10_record = 1 + cifar10_pixels;

std::int64_t count_cifar10_records(const FileReader& file);

void read_cifar10_records(const FileReader& file, std::int64_t records, std::uint8_t* pixels,
                          std::int64_t* labels);

}  // namespace detail

/// Reads files in CIFAR-10's binary layout, one behind the other.
///
/// Returns images uint8 [N, 3, 32, 32], labels int64 [N] and CIFAR-10's class names.
/// Throws c10::Error, naming the file, when one cannot be read, is empty, does not consist of whole
/// records, or has a label above 9; (ValueError) without any file.
ImageSet load_cifar10_batches(const std::vector<std::string>& files);

/// Reads CIFAR-10 from the folder into which its binary version was unpacked.
///
/// train: all data_batch_*.bin that are there, in the order of their names; test: test_batch.bin.
/// Throws c10::Error when the folder has none of them, and as load_cifar10_batches.
ImageSet load_cifar10(const std::string& folder, Split split = Split::train);

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/cifar.inl.hpp>
#endif
