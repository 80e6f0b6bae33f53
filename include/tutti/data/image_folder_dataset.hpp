// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/crops.hpp>
#include <tutti/data/detail/image_files.hpp>
#include <tutti/data/framing.hpp>
#include <tutti/data/image_decoder.hpp>
#include <tutti/data/image_folder.hpp>
#include <tutti/data/image_geometry.hpp>
#include <tutti/data/resize_and_crop.hpp>

/// Images in folders that are named as their classes, decoded when they are asked for.
namespace tutti::data {

/// Options of ImageFolderDataset.
struct ImageFolderDatasetOptions {
  std::string prefix{};  ///< where in the folder or tar file the classes are, such as "train/"
  /// To which size images come: RandomResizedCrop, Resize, ResizeAndCrop or a function of your own.
  /// Empty: as they are.
  std::function<Framing(std::int64_t height, std::int64_t width, Rng& rng)> framing{};
  std::vector<std::string> classes{};  ///< by label; empty: the folders, sorted by name
  std::vector<std::string> extensions{".jpg", ".jpeg",
                                      ".png"};  ///< in lower case; other files are no images
  double reducing_gap = 2;  ///< JPEG is decoded at 1/2, 1/4 or 1/8 while that leaves this many
                            ///< times the pixels that are wanted, each way, as Pillow's thumbnail()
                            ///< does: less is faster, more closer to the whole image made smaller;
                            ///< >= 1, or 0: decoded whole
};

/// A data set of image files, of any sizes: reads and decodes one when it is asked for it.
///
///     tutti::data::ImageFolderDataset photos{
///         "photos.tar", {.prefix = "train/",
///                        .framing = tutti::data::RandomResizedCrop{.size = 224}}};
///     tutti::DataLoader train{photos, {.batch_size = 128, .shuffle = true, .num_workers = 4,
///                                      .on_error = tutti::OnError::skip}};
///
/// path: a folder, or an uncompressed tar file that is read without unpacking it, with CLASS/NAME
/// or CLASS/FOLDER/NAME as load_image_folder() takes it. Only names are kept in memory. A JPEG file
/// is decoded no larger than its framing needs. The DataLoader's threads decode; what they draw
/// depends on seed, epoch and index alone. Copies share the open file.
///
/// Decode: `at::Tensor (std::string_view bytes, const std::string& name)`, uint8 [C, H, W], or with
/// a third parameter, `const ReduceImage&`, that says by how much it may be made smaller; const.
/// Source: torchvision, `datasets.ImageFolder`.
template <class Decode = ImageDecoder>
class ImageFolderDataset {
 public:
  /// Throws c10::Error, naming the folder, when there is no image or none of some class, or a class
  /// is not in options.classes; (ValueError) when reducing_gap is out of range.
  explicit ImageFolderDataset(const std::string& path, ImageFolderDatasetOptions options = {},
                              Decode decode = {})
      : options_(std::move(options)),
        decode_(std::move(decode)),
        all_(std::make_shared<const detail::ImageFiles>(path, options_.prefix)),
        files_(std::make_shared<const std::vector<detail::ImageFile>>(
            detail::choose_images(*all_, path,
                                  {.prefix = options_.prefix,
                                   .classes = options_.classes,
                                   .extensions = options_.extensions}))),
        classes_(options_.classes) {
    TUTTI_CHECK_VALUE(options_.reducing_gap == 0 || options_.reducing_gap >= 1,
                      "ImageFolderDataset: reducing_gap is ", options_.reducing_gap,
                      ", expected 1 or more, or 0 for images that are decoded whole");
    labels_ = detail::make_labels(*files_, path, classes_);
  }

  [[nodiscard]] std::int64_t size() const { return std::ssize(*files_); }

  /// Image number `index`, sorted by class, folder and name, and its label: uint8 [C, H, W] and
  /// int64 []. Throws c10::Error, naming the file, when it cannot be read or decoded.
  std::pair<at::Tensor, at::Tensor> get(std::int64_t index, Rng& rng) const {
    TUTTI_CHECK_INDEX(index >= 0 && index < size(), "ImageFolderDataset: there is no image ", index,
                      ", expected 0 to ", size() - 1);
    const detail::ImageFile& file = (*files_)[static_cast<std::size_t>(index)];
    const std::string name = all_->full_name(file);
    return {image(all_->read(file), name, rng), labels_.select(0, index)};
  }

  /// The labels of all images: int64 [N].
  [[nodiscard]] const at::Tensor& labels() const { return labels_; }

  /// The names of the classes, by label.
  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }

  /// The file of image number `index`, as messages call it. index: 0 to size() - 1.
  [[nodiscard]] std::string file(std::int64_t index) const {
    return all_->full_name(files_->at(static_cast<std::size_t>(index)));
  }

  [[nodiscard]] const ImageFolderDatasetOptions& options() const { return options_; }

 private:
  at::Tensor image(const std::string& bytes, const std::string& name, Rng& rng) const {
    std::int64_t height = 0;
    std::int64_t width = 0;
    Framing framing;
    const auto plan = [&](std::int64_t rows, std::int64_t columns) {
      height = rows;
      width = columns;
      framing = options_.framing ? options_.framing(rows, columns, rng) : Framing{};
      return options_.reducing_gap == 0 ? 1
                                        : framing.reduction(rows, columns, options_.reducing_gap);
    };
    at::Tensor out;
    if constexpr (std::invocable<const Decode&, std::string_view, const std::string&,
                                 const ReduceImage&>) {
      out = decode_(std::string_view(bytes), name, plan);
    } else {
      out = decode_(std::string_view(bytes), name);
    }
    TUTTI_CHECK(out.dim() == 3 && out.scalar_type() == at::kByte && out.numel() > 0, "'", name,
                "' was decoded to ", out.scalar_type(), out.sizes(), ", expected uint8 [C, H, W]");
    if (height == 0) {  // a format that comes whole
      plan(out.size(1), out.size(2));
    }
    framing = framing.reduced(height, width, out.size(1), out.size(2));
    out = framing.box.height == 0 ? out : crop(out, framing.box);
    if (framing.size.height != 0) {
      const auto [rows, columns] = framing.size.square();
      out = resize_image(out, rows, columns, framing.interpolation);
    }
    return framing.kept.height == 0 ? out : crop(out, framing.kept);
  }

  ImageFolderDatasetOptions options_;
  Decode decode_;
  std::shared_ptr<const detail::ImageFiles> all_;
  std::shared_ptr<const std::vector<detail::ImageFile>> files_;
  std::vector<std::string> classes_;
  at::Tensor labels_;
};

}  // namespace tutti::data
