#include <tutti/data/image_folder_dataset.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/random_flip.hpp>
#include <tutti/data/split.hpp>

#include "data/encode_jpeg.hpp"
#include "data/epochs.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::Rng;
using tutti::data::ImageFolderDataset;
using tutti::data::ImageFolderDatasetOptions;
using tutti::data::RandomResizedCrop;
using tutti::data::ReduceImage;
using tutti::data::Resize;
using tutti::data::ResizeAndCrop;

namespace {

// An image file of our own, so that it is tested without libjpeg: height, width, and the value of
// the first pixel; each next one is brighter by 1.
at::Tensor ramp(std::string_view bytes, const std::string& name) {
  TORCH_CHECK(bytes.size() == 3, "'", name, "' has ", bytes.size(), " bytes, expected 3");
  const std::int64_t height = bytes[0];
  const std::int64_t width = bytes[1];
  return at::arange(height * width)
      .add(static_cast<unsigned char>(bytes[2]))
      .to(at::kByte)
      .view({1, height, width});
}

// It comes whole.
struct Whole {
  at::Tensor operator()(std::string_view bytes, const std::string& name) const {
    return ramp(bytes, name);
  }
};

// It can be made smaller: only every second, fourth, eighth row and column.
struct Fewer {
  std::shared_ptr<std::vector<int>> reduced = std::make_shared<std::vector<int>>();

  at::Tensor operator()(std::string_view bytes, const std::string& name,
                        const ReduceImage& reduce) const {
    const at::Tensor all = ramp(bytes, name);
    const int by = reduce(all.size(1), all.size(2));
    reduced->push_back(by);
    return all.slice(1, 0, all.size(1), by).slice(2, 0, all.size(2), by).contiguous();
  }
};

std::string file(int height, int width, int first) {
  return {static_cast<char>(height), static_cast<char>(width), static_cast<char>(first)};
}

struct Folder {
  TemporaryFolder folder{};
  Folder() {
    std::filesystem::create_directories(folder / "train/cat");
    std::filesystem::create_directories(folder / "train/dog");
    for (int i = 0; i < 6; ++i) {
      write_bytes(folder / ("train/cat/" + std::to_string(i) + ".ramp"), file(8 + i, 9, 10 * i));
      write_bytes(folder / ("train/dog/" + std::to_string(i) + ".ramp"), file(16, 30 - i, i));
    }
  }
  [[nodiscard]] std::string path() const { return folder.path().string(); }
};

ImageFolderDatasetOptions with(
    std::function<tutti::data::Framing(std::int64_t, std::int64_t, Rng&)> framing) {
  return {.prefix = "train", .framing = std::move(framing), .extensions = {".ramp"}};
}

}  // namespace

TEST_CASE("files are read by number, in the order of classes and names", "[data][image_folder]") {
  const Folder folder;
  const ImageFolderDataset photos(folder.path(), with({}), Whole{});
  CHECK(photos.size() == 12);
  CHECK(photos.classes() == std::vector<std::string>{"cat", "dog"});
  CHECK(photos.labels().equal(at::arange(12).ge(6).to(at::kLong)));
  Rng rng;
  const auto [image, label] = photos.get(8, rng);
  CHECK(image.equal(ramp(file(16, 28, 2), "")));
  CHECK(label.item<std::int64_t>() == 1);
  CHECK(photos.file(8).ends_with("/train/dog/2.ramp"));
  CHECK_THROWS_WITH(photos.get(12, rng),
                    ContainsSubstring("there is no image 12, expected 0 to 11"));
}

TEST_CASE("images in folders of a class are found, and named with them", "[data][image_folder]") {
  const Folder folder;
  std::filesystem::create_directories(folder.folder / "train/cat/2024/may");
  write_bytes(folder.folder / "train/cat/2024/may/0.ramp", file(8, 9, 70));
  const ImageFolderDataset photos(folder.path(), with({}), Whole{});
  CHECK(photos.size() == 13);
  CHECK(photos.labels().equal(at::arange(13).ge(7).to(at::kLong)));
  CHECK(photos.file(6).ends_with("/train/cat/2024/may/0.ramp"));
  Rng rng;
  CHECK(photos.get(6, rng).first.equal(ramp(file(8, 9, 70), "")));
}

TEST_CASE("images of several sizes in a batch are refused with what gives them one",
          "[data][image_folder]") {
  const Folder folder;
  tutti::DataLoader loader(ImageFolderDataset(folder.path(), with({}), Whole{}), {.batch_size = 2});
  loader.start(0);
  std::string text;
  try {
    (void)loader.next();
  } catch (const std::exception& error) {
    text = error.what();
  }
  CHECK(text ==
        "DataLoader: \"inputs\" of example 1 is Byte[1, 9, 9] and of example 0 Byte[1, 8, 9]; "
        "expected one type and size in all of a batch: give ImageFolderDataset's options.framing, "
        "or a transform such as ResizeAndCrop, or options.collate");
}

TEST_CASE("images come as their framing says, with the draws of the transform",
          "[data][image_folder][law]") {
  const Folder folder;
  const RandomResizedCrop random{.size = {5, 6}};
  const Resize resize{.size = 7};
  const ResizeAndCrop fit{.resize = 8, .crop = 6};
  const ImageFolderDataset a(folder.path(), with(random), Whole{});
  const ImageFolderDataset b(folder.path(), with(resize), Whole{});
  const ImageFolderDataset c(folder.path(), with(fit), Whole{});
  const ImageFolderDataset all(folder.path(), with({}), Whole{});
  for (std::int64_t i = 0; i < all.size(); ++i) {
    Rng rng(static_cast<std::uint64_t>(i));
    Rng again(static_cast<std::uint64_t>(i));
    const at::Tensor image = all.get(i, rng).first;
    CHECK(a.get(i, rng).first.equal(random(image, again)));
    CHECK(b.get(i, rng).first.equal(resize(image)));
    CHECK(c.get(i, rng).first.equal(fit(image)));
  }
}

TEST_CASE("a decoder is told by how much an image may be made smaller", "[data][image_folder]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "a");
  write_bytes(folder / "a/1.ramp", file(64, 100, 0));
  const auto reduced = [&](ImageFolderDatasetOptions options, at::IntArrayRef size) {
    options.extensions = {".ramp"};
    const Fewer decode;
    const ImageFolderDataset set(folder.path().string(), options, decode);
    Rng rng;
    CHECK(set.get(0, rng).first.sizes() == size);
    return decode.reduced->back();
  };
  CHECK(reduced({}, {1, 64, 100}) == 1);
  CHECK(reduced({.framing = Resize{.size = 8}}, {1, 8, 12}) == 4);
  CHECK(reduced({.framing = Resize{.size = 9}}, {1, 9, 14}) == 2);
  CHECK(reduced({.framing = Resize{.size = 8}, .reducing_gap = 1}, {1, 8, 12}) == 8);
  CHECK(reduced({.framing = Resize{.size = 9}, .reducing_gap = 1}, {1, 9, 14}) == 4);
  CHECK(reduced({.framing = Resize{.size = 8}, .reducing_gap = 0}, {1, 8, 12}) == 1);
  CHECK(reduced({.framing = ResizeAndCrop{.resize = 16, .crop = 12}}, {1, 12, 12}) == 2);
  const RandomResizedCrop whole{.size = 8, .scale = {1, 1}, .ratio = {100.0 / 64, 100.0 / 64}};
  CHECK(reduced({.framing = whole}, {1, 8, 8}) == 4);
  CHECK_THROWS_WITH(reduced({.reducing_gap = 0.5}, {}),
                    ContainsSubstring("reducing_gap is 0.5, expected 1 or more, or 0"));
}

TEST_CASE("threads decode, and every number of them gives the same batches; a run resumes",
          "[data][image_folder][law]") {
  const Folder folder;
  const auto loader = [&](std::int64_t threads) {
    return tutti::DataLoader(
        ImageFolderDataset(folder.path(), with(RandomResizedCrop{.size = 6}), Whole{}),
        {.batch_size = 5,
         .shuffle = true,
         .seed = 3,
         .num_workers = threads,
         .transforms = {{"flip", tutti::data::RandomHorizontalFlip{}}}});
  };
  const auto alone = epoch_of(loader(0), 1);
  REQUIRE(alone.size() == 3);
  CHECK(alone[0].inputs().sizes() == at::IntArrayRef{5, 1, 6, 6});
  CHECK(alone[0].targets().sizes() == at::IntArrayRef{5});
  CHECK(same(epoch_of(loader(3), 1), alone));
  CHECK(same(epoch_of(loader(2), 1, 1), {alone.begin() + 1, alone.end()}));
  CHECK_FALSE(same(epoch_of(loader(0), 2), alone));
}

TEST_CASE("a damaged file is named, or left out when that is wanted", "[data][image_folder]") {
  const Folder folder;
  write_bytes(folder.folder / "train/dog/3.ramp", "four");
  const ImageFolderDataset photos(folder.path(), with(Resize{.size = {4, 4}}), Whole{});
  for (const std::int64_t threads : {0, 2}) {
    tutti::DataLoader strict(photos, {.batch_size = 12, .num_workers = threads});
    strict.start(0);
    CHECK_THAT(message([&] { (void)strict.next(); }),
               ContainsSubstring("example 9 of the data set cannot be had: '") &&
                   ContainsSubstring("train/dog/3.ramp' has 4 bytes, expected 3"));
    tutti::DataLoader lenient(
        photos, {.batch_size = 12, .num_workers = threads, .on_error = tutti::OnError::skip});
    lenient.start(0);
    CHECK(lenient.next()->inputs().size(0) == 11);
    CHECK(lenient.skipped() == 1);
  }
  std::filesystem::remove(folder.folder / "train/dog/3.ramp");
  Rng rng;
  CHECK_THAT(message([&] { (void)photos.get(9, rng); }),
             ContainsSubstring("train/dog/3.ramp' cannot be opened: No such file"));
}

TEST_CASE("copies and parts share the files", "[data][image_folder]") {
  const Folder folder;
  const ImageFolderDataset photos(folder.path(), with(Resize{.size = {4, 4}}), Whole{});
  const auto parts = tutti::data::split(photos, {0.5, 0.5}, 17);
  CHECK(parts[0].size() + parts[1].size() == 12);
  tutti::DataLoader loader(parts[0], {.batch_size = 6});
  loader.start(0);
  CHECK(loader.next()->inputs().sizes() == at::IntArrayRef{6, 1, 4, 4});
}

#ifdef TUTTI_WITH_JPEG

TEST_CASE("JPEG is decoded at 1/2, 1/4 and 1/8, close to the whole image made smaller",
          "[data][image_folder][jpeg]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "a");
  // 200 x 300: a picture of slow waves, in three colours.
  const at::Tensor y = at::arange(200).to(at::kFloat).view({200, 1, 1}).mul(0.06);
  const at::Tensor x = at::arange(300).to(at::kFloat).view({1, 300, 1}).mul(0.05);
  const at::Tensor phase = at::arange(3).to(at::kFloat).view({1, 1, 3});
  const at::Tensor waves = y.add(phase).sin().add(x.sub(phase).cos()).mul(60).add(128);
  const std::string jpeg = encode_jpeg(waves.to(at::kByte).contiguous(), JCS_RGB);
  write_bytes(folder / "a/1.jpg", jpeg);
  const auto decoded = [&](int by) {
    return tutti::data::decode_jpeg(jpeg, "1.jpg", {}, [by](std::int64_t rows, std::int64_t cols) {
      CHECK(rows == 200);
      CHECK(cols == 300);
      return by;
    });
  };
  CHECK(decoded(1).equal(tutti::data::decode_jpeg(jpeg)));
  CHECK(decoded(2).sizes() == at::IntArrayRef{3, 100, 150});
  CHECK(decoded(8).sizes() == at::IntArrayRef{3, 25, 38});  // 37.5 is rounded up
  CHECK_THROWS_WITH(decoded(3), ContainsSubstring("reduce is 3, expected 1, 2, 4 or 8"));
  const auto set = [&](double gap, const auto& framing) {
    return ImageFolderDataset(folder.path().string(), {.framing = framing, .reducing_gap = gap});
  };
  const auto evaluated = [&](double gap) {
    Rng rng;
    return set(gap, ResizeAndCrop{.resize = 24, .crop = 20}).get(0, rng).first.to(at::kFloat);
  };
  CHECK(evaluated(0).to(at::kByte).equal(ResizeAndCrop{.resize = 24, .crop = 20}(decoded(1))));
  CHECK(evaluated(1).sub(evaluated(0)).abs().mean().item<double>() < 5);  // from 38, not 37.5
  CHECK(evaluated(2).sub(evaluated(0)).abs().mean().item<double>() < 1);
  // A random box is that of the whole image, to within half a pixel of the smaller one.
  const RandomResizedCrop random{.size = 20, .scale = {0.5, 1}};
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Rng a(seed);
    Rng b(seed);
    const tutti::data::Framing plan = random(200, 300, b);
    const int by = plan.reduction(200, 300, 2);
    const at::Tensor fewer = decoded(by);
    const auto box = plan.reduced(200, 300, fewer.size(1), fewer.size(2)).box;
    const at::Tensor image = set(2, random).get(0, a).first;
    CHECK(by >= 2);
    CHECK(image.equal(tutti::data::resized_crop(fewer, box, 20)));
    const at::Tensor whole = tutti::data::resized_crop(decoded(1), plan.box, 20);
    CHECK(image.to(at::kFloat).sub(whole.to(at::kFloat)).abs().mean().item<double>() < 4);
  }
  write_bytes(folder / "a/1.jpg", jpeg.substr(0, jpeg.size() / 2));
  CHECK_THAT(message([&] { (void)evaluated(1); }),
             ContainsSubstring("a/1.jpg' cannot be decoded: Premature end of JPEG"));
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
