// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/image_files.hpp>
#include <tutti/data/image_decoder.hpp>
#include <tutti/data/image_set.hpp>
#include <tutti/data/resize_and_crop.hpp>

/// Images in folders that are named as their classes.
namespace tutti::data {

/// Options of load_image_folder.
struct ImageFolderOptions {
  std::string prefix{};   ///< where in the folder or tar file the classes are, such as "train/"
  std::int64_t size = 0;  ///< scale the shorter side to it and keep the square in the middle; 0: no
  std::vector<std::string> classes{};  ///< by label; empty: the folders, sorted by name
  std::vector<std::string> extensions{".jpg", ".jpeg",
                                      ".png"};  ///< in lower case; other files are no images
  std::optional<ResizeAndCrop> fit{};           ///< in place of size: how images get a model's size
};

/// An image scaled until its shorter side is `size`, and the square in the middle of that.
///
/// image: uint8 [C, H, W], not empty. Bilinear, over all pixels that come together in one.
/// Returns uint8 [C, size, size]; the image itself when it is that. size: >= 1, else throws
/// c10::Error (ValueError).
inline at::Tensor fit_square(const at::Tensor& image, std::int64_t size) {
  TUTTI_CHECK_VALUE(
      size >= 1 && image.dim() == 3 && image.numel() > 0 && image.scalar_type() == at::kByte,
      "fit_square: size is ", size, " and the image ", image.scalar_type(), image.sizes(),
      ", expected 1 or more and uint8 [C, H, W] that is not empty");
  const std::int64_t height = image.size(1);
  const std::int64_t width = image.size(2);
  const std::int64_t shorter = std::min(height, width);
  const std::int64_t rows = std::max(size, (height * size + shorter / 2) / shorter);
  const std::int64_t columns = std::max(size, (width * size + shorter / 2) / shorter);
  const at::Tensor scaled = shorter != size ? resize_image(image, rows, columns) : image;
  return scaled.narrow(1, (rows - size) / 2, size).narrow(2, (columns - size) / 2, size);
}

namespace detail {

inline bool has_extension(std::string name, const std::vector<std::string>& extensions) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) {
    return static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter - 'A' + 'a' : letter);
  });
  return std::any_of(extensions.begin(), extensions.end(),
                     [&](const std::string& extension) { return name.ends_with(extension); });
}

inline std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    out += (out.empty() ? "" : ", ") + word;
  }
  return out;
}

// Whether the folders are parts of a data set, each with folders of classes in it.
inline bool are_splits(const std::vector<std::string>& folders) {
  constexpr std::array<std::string_view, 9> names{"dev",      "eval", "test",  "testing",   "train",
                                                  "training", "val",  "valid", "validation"};
  return std::ranges::all_of(
      folders, [&](const std::string& name) { return std::ranges::count(names, name) > 0; });
}

// The images among the files, in their order.
inline std::vector<ImageFile> choose_images(const ImageFiles& all, const std::string& path,
                                            const ImageFolderOptions& options) {
  std::vector<ImageFile> out;
  for (const ImageFile& file : all.files()) {
    if (has_extension(file.name, options.extensions)) {
      out.push_back(file);
    }
  }
  const std::string wanted =
      "expected " + all.prefix() + "CLASS/NAME with one of " + join(options.extensions);
  const bool in_classes =
      !options.classes.empty() || !are_splits(all.folders()) ||
      std::ranges::any_of(out, [](const ImageFile& file) { return file.place().first.empty(); });
  TUTTI_CHECK(!out.empty() && in_classes, "'", path, "' has no image there, ", wanted,
              "; at its top are ", all.top(), " (options.prefix says where the classes are)");
  for (const std::string& folder : all.folders()) {
    TUTTI_CHECK(std::ranges::binary_search(out, folder, {}, &ImageFile::class_name), "'", path,
                "' has no image in its folder '", all.prefix(), folder, "', ", wanted,
                "; remove the folder if it is no class, or set options.prefix");
  }
  return out;
}

// The class of each image; all of them in `classes`, which is filled in when it is empty.
inline at::Tensor make_labels(const std::vector<ImageFile>& files, const std::string& path,
                              std::vector<std::string>& classes) {
  const bool given = !classes.empty();
  at::Tensor labels =
      at::detail::empty_cpu({std::ssize(files)}, at::kLong, /*pin_memory=*/false, std::nullopt);
  auto* label = labels.mutable_data_ptr<std::int64_t>();
  std::int64_t number = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string& name = files[i].class_name;
    if (i == 0 || name != files[i - 1].class_name) {
      if (!given) {
        classes.push_back(name);
      }
      number = std::find(classes.begin(), classes.end(), name) - classes.begin();
      TUTTI_CHECK(number < std::ssize(classes), "'", path, "' has the class '", name,
                  "', expected one of options.classes: ", join(classes));
    }
    label[i] = number;
  }
  return labels;
}

}  // namespace detail

/// Reads all images of a folder, or of an uncompressed tar file: CLASS/NAME.jpg, with any folders
/// between the class and the name.
///
///     auto train = tutti::data::load_image_folder("photos.tar", {.prefix = "train/", .size = 64});
///     auto test = tutti::data::load_image_folder(
///         "photos.tar", {.prefix = "test/", .size = 64, .classes = train.classes});
///
/// path: read as it is, a tar file without unpacking it. Names that begin with a dot are left out,
/// of files and folders. A link is followed, unless it leads to a folder that it stands in. Images
/// are sorted by class, folder and name, as torchvision's ImageFolder sorts them. decode:
/// `at::Tensor (std::string_view bytes, const std::string& name)`, uint8 [C, H, W]; called for
/// several images at a time. JPEG needs the target tutti::jpeg, PNG tutti::png. Returns images
/// uint8 [N, C, H, W], labels int64 [N] and the classes' names. Throws c10::Error, naming the file,
/// when there is no image or none of some class, one cannot be decoded, sizes differ and
/// options.size is 0, or a class is not in options.classes.
template <class Decode = ImageDecoder>
ImageSet load_image_folder(const std::string& path, const ImageFolderOptions& options = {},
                           const Decode& decode = Decode{}) {
  TUTTI_CHECK_VALUE(options.size >= 0, "load_image_folder: size is ", options.size,
                    ", expected 1 or more, or 0 for the images as they are");
  TUTTI_CHECK_VALUE(options.size == 0 || !options.fit,
                    "load_image_folder: size and fit are both set, expected one of them");
  const detail::ImageFiles all(path, options.prefix);
  const std::vector<detail::ImageFile> files = detail::choose_images(all, path, options);
  ImageSet out{.images = {}, .labels = {}, .classes = options.classes};
  out.labels = detail::make_labels(files, path, out.classes);
  const auto load = [&](const detail::ImageFile& file) {
    const std::string bytes = all.read(file);
    const at::Tensor image = decode(std::string_view(bytes), all.full_name(file));
    TUTTI_CHECK(image.dim() == 3 && image.scalar_type() == at::kByte && image.numel() > 0, "'",
                all.full_name(file), "' was decoded to ", image.scalar_type(), image.sizes(),
                ", expected uint8 [C, H, W]");
    return options.fit        ? (*options.fit)(image)
           : options.size > 0 ? fit_square(image, options.size)
                              : image;
  };
  const at::Tensor first = load(files.front());
  std::vector<std::int64_t> shape = first.sizes().vec();
  shape.insert(shape.begin(), std::ssize(files));
  out.images = at::detail::empty_cpu(shape, at::kByte, /*pin_memory=*/false, std::nullopt);
  ::tutti::detail::parallel_each(std::ssize(files), [&](std::int64_t i) {
    const detail::ImageFile& file = files[static_cast<std::size_t>(i)];
    const at::Tensor image = i == 0 ? first : load(file);
    TUTTI_CHECK(image.sizes() == first.sizes(), "'", all.full_name(file), "' is ", image.sizes(),
                " and '", all.full_name(files.front()), "' ", first.sizes(),
                ", expected one size for all; set options.size to scale and crop them");
    out.images.select(0, i).copy_(image);
  });
  return out;
}

}  // namespace tutti::data
