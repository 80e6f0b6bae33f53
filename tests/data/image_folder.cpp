#include <tutti/data/image_folder.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <ATen/ATen.h>

#include <tutti/data/cifar.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/tokens.hpp>

#include "data/encode_jpeg.hpp"
#include "support/bounded.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::data::ImageFolderOptions;
using tutti::data::load_image_folder;

namespace {

// An image file of our own, so that folders are tested without libjpeg: width, height, grey level.
struct Grey {
  at::Tensor operator()(std::string_view bytes, const std::string& name) const {
    TORCH_CHECK(bytes.size() == 3, "'", name, "' has ", bytes.size(), " bytes, expected 3");
    return at::full({1, bytes[1], bytes[0]}, int{static_cast<unsigned char>(bytes[2])}, at::kByte);
  }
};

std::string grey(int level, int width = 4, int height = 4) {
  return {static_cast<char>(width), static_cast<char>(height), static_cast<char>(level)};
}

const ImageFolderOptions gif{.extensions = {".gif"}};

void set_field(std::string& header, std::size_t offset, std::string_view text) {
  std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(offset));
}

std::string octal(std::size_t value, int digits) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%0*zo", digits, value);
  return text.data();
}

// One entry of a tar file. Names may be split with `prefix`, as ustar does.
std::string tar_entry(const std::string& name, const std::string& bytes, char type = '0',
                      const std::string& prefix = {}) {
  std::string header(512, '\0');
  set_field(header, 0, name);
  set_field(header, 124, octal(bytes.size(), 11));
  set_field(header, 148, "        ");
  header[156] = type;
  set_field(header, 257, std::string_view("ustar\00000", 8));
  set_field(header, 345, prefix);
  std::size_t sum = 0;
  for (const char c : header) {
    sum += static_cast<unsigned char>(c);
  }
  set_field(header, 148, octal(sum, 6) + std::string("\0 ", 2));
  return header + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
}

const std::string tar_end(1024, '\0');

std::vector<int> levels(const tutti::data::ImageSet& set) {
  std::vector<int> out;
  for (std::int64_t i = 0; i < set.images.size(0); ++i) {
    out.push_back(set.images[i].flatten()[0].item<int>());
  }
  return out;
}

}  // namespace

TEST_CASE("folders give classes by name and images by class and name", "[data][law]") {
  const TemporaryFolder folder;
  for (const char* name : {"dog", "cat", ".hidden"}) {
    std::filesystem::create_directory(folder / name);
  }
  write_bytes(folder / "dog/b.gif", grey(3));
  write_bytes(folder / "dog/a.GIF", grey(2));
  write_bytes(folder / "cat/x.gif", grey(1));
  write_bytes(folder / "cat/notes.txt", "no image");
  write_bytes(folder / "cat/._x.gif", "no image");
  write_bytes(folder / "loose.gif", grey(9));

  const auto set = load_image_folder(folder.path().string(), gif, Grey{});
  CHECK(set.classes == std::vector<std::string>{"cat", "dog"});
  CHECK(set.labels.equal(at::tensor({0, 1, 1}, at::kLong)));
  CHECK(set.images.sizes() == at::IntArrayRef({3, 1, 4, 4}));
  CHECK(levels(set) == std::vector<int>{1, 2, 3});
}

TEST_CASE("a tar file gives what the folder in it would", "[data][law]") {
  const TemporaryFolder folder;
  const std::string long_name = "train/dog/" + std::string(120, 'n') + ".gif";
  const std::string record = " path=" + long_name + "\n";
  const std::string pax = std::to_string(record.size() + 3) + record;
  write_bytes(folder / "set.tar",
              tar_entry("pax_global_header", "20 comment=something\n", 'g') +
                  tar_entry("./", "", '5') + tar_entry("./train/", "", '5') +
                  tar_entry("train/dog/c.gif", grey(7)) + tar_entry("x", pax, 'x') +
                  tar_entry("short", grey(8)) +
                  tar_entry("L", "train/cat/" + std::string(150, 'm') + ".gif", 'L') +
                  tar_entry("short", grey(5)) + tar_entry("cat/a.gif", grey(4), '0', "./train") +
                  tar_entry("train/cat/link.gif", "", '2') + tar_entry("test/cat/a.gif", grey(1)) +
                  tar_end);
  auto options = gif;
  options.prefix = "train/";
  const std::string path = (folder / "set.tar").string();
  const auto train = load_image_folder(path, options, Grey{});
  CHECK(train.classes == std::vector<std::string>{"cat", "dog"});
  CHECK(levels(train) == std::vector<int>{4, 5, 7, 8});
  CHECK(train.labels.equal(at::tensor({0, 0, 1, 1}, at::kLong)));

  options = {.prefix = "test", .classes = {"dog", "cat"}, .extensions = {".gif"}};
  const auto test = load_image_folder(path, options, Grey{});
  CHECK(test.labels.equal(at::ones({1}, at::kLong)));
  CHECK(test.classes == std::vector<std::string>{"dog", "cat"});
}

TEST_CASE("folders in those of the classes are read in torchvision's order", "[data][law]") {
  const TemporaryFolder folder;
  // By class, folder and name, where '-' stands before '/': torchvision's ImageFolder gives it so.
  const std::vector<std::string> order{"cat/z.gif",     "cat/a/y.gif",   "cat/a-b/x.gif",
                                       "cat/a/b/w.gif", "cat/a/c/v.gif", "dog/deep/er/u.gif"};
  std::string tar;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::string level = grey(static_cast<int>(i) + 1);
    std::filesystem::create_directories((folder / ("set/" + order[i])).parent_path());
    write_bytes(folder / ("set/" + order[i]), level);
    tar += tar_entry("set/" + order[i], level);
  }
  for (const char* name : {"cat/.hidden/1.gif", "cat/a/.hidden/1.gif", "cat/a/._y.gif"}) {
    std::filesystem::create_directories((folder / ("set/" + std::string(name))).parent_path());
    write_bytes(folder / ("set/" + std::string(name)), "no image");
    tar += tar_entry("set/" + std::string(name), "no image");
  }
  write_bytes(folder / "set.tar", tar + tar_end);
  const auto check = [](const tutti::data::ImageSet& set) {
    CHECK(set.classes == std::vector<std::string>{"cat", "dog"});
    CHECK(set.labels.equal(at::tensor({0, 0, 0, 0, 0, 1}, at::kLong)));
    CHECK(levels(set) == std::vector<int>{1, 2, 3, 4, 5, 6});
  };
  check(load_image_folder((folder / "set").string(), gif, Grey{}));
  auto options = gif;
  options.prefix = "set";
  check(load_image_folder((folder / "set.tar").string(), options, Grey{}));
  write_bytes(folder / "set/cat/a/c/bad.gif", "four");
  CHECK_THAT(message([&] { (void)load_image_folder((folder / "set").string(), gif, Grey{}); }),
             ContainsSubstring("set/cat/a/c/bad.gif' has 4 bytes, expected 3"));
}

TEST_CASE("links to folders are followed, and never in circles", "[data]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "set/a/in");
  std::filesystem::create_directories(folder / "set/b");
  std::filesystem::create_directories(folder / "else");
  write_bytes(folder / "set/a/in/1.gif", grey(1));
  write_bytes(folder / "set/b/2.gif", grey(2));
  write_bytes(folder / "else/3.gif", grey(3));
  std::filesystem::create_directory_symlink("../../../else", folder / "set/a/in/there");
  std::filesystem::create_directory_symlink("..", folder / "set/a/in/up");
  std::filesystem::create_directory_symlink("../..", folder / "set/a/in/root");
  std::filesystem::create_directory_symlink(".", folder / "set/b/itself");
  const auto set = load_image_folder((folder / "set").string(), gif, Grey{});
  CHECK(levels(set) == std::vector<int>{1, 3, 2});
  CHECK(set.labels.equal(at::tensor({0, 0, 1}, at::kLong)));
}

TEST_CASE("images of several sizes become one when a size is asked for", "[data]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  write_bytes(folder / "a/1.gif", grey(50, 8, 4));
  write_bytes(folder / "a/2.gif", grey(60, 3, 12));
  const std::string path = folder.path().string();
  CHECK_THAT(message([&] { (void)load_image_folder(path, gif, Grey{}); }),
             ContainsSubstring("a/2.gif' is [1, 12, 3] and '") &&
                 ContainsSubstring("a/1.gif' [1, 4, 8], expected one size for all; set "
                                   "options.size"));
  auto options = gif;
  options.size = 6;
  const auto set = load_image_folder(path, options, Grey{});
  CHECK(set.images.sizes() == at::IntArrayRef({2, 1, 6, 6}));
  CHECK(levels(set) == std::vector<int>{50, 60});
}

TEST_CASE("fitting a square keeps the middle and averages what comes together", "[data][law]") {
  const at::Tensor image = at::arange(12).to(at::kByte).view({1, 2, 6});
  CHECK(tutti::data::fit_square(image, 2).equal(image.narrow(2, 2, 2)));
  const at::Tensor same = image.narrow(2, 0, 2);
  CHECK(tutti::data::fit_square(same, 2).equal(same));
  const at::Tensor checks = at::arange(64).remainder(2).mul(200).to(at::kByte).view({1, 8, 8});
  CHECK(tutti::data::fit_square(checks, 1).item<int>() == 100);
  CHECK_THROWS_WITH(tutti::data::fit_square(image, 0), ContainsSubstring("size is 0"));
  CHECK_THROWS_WITH(tutti::data::fit_square(image.slice(1, 0, 0), 2),
                    ContainsSubstring("the image Byte[1, 0, 6], expected 1 or more and uint8"));
}

TEST_CASE("folders without images or with other classes say what is there", "[data]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "train/cat");
  std::filesystem::create_directories(folder / "train/dog");
  write_bytes(folder / "train/cat/1.gif", grey(1));
  const std::string path = folder.path().string();
  const auto says = [&](const ImageFolderOptions& options) {
    return message([&] { (void)load_image_folder(path, options, Grey{}); });
  };
  CHECK_THAT(says(gif), ContainsSubstring("has no image there, expected CLASS/NAME with one of "
                                          ".gif; at its top are train/"));
  std::filesystem::create_directories(folder / "val/cat");
  write_bytes(folder / "val/cat/1.gif", grey(1));
  CHECK_THAT(says(gif), ContainsSubstring("has no image there, expected CLASS/NAME with one of "
                                          ".gif; at its top are train/, val/ (options.prefix"));
  auto options = gif;
  options.classes = {"train", "val"};  // they are classes, since they are called so
  CHECK(says(options) == "nothing");
  options.classes = {};
  options.prefix = "train";
  CHECK_THAT(says(options), ContainsSubstring("has no image in its folder 'train/dog', expected "
                                              "train/CLASS/NAME with one of .gif"));
  write_bytes(folder / "train/dog/1.gif", grey(1));
  CHECK(says(options) == "nothing");
  options.classes = {"cat", "bird"};
  CHECK_THAT(says(options), ContainsSubstring("has the class 'dog', expected one of "
                                              "options.classes: cat, bird"));
  options.classes = {};
  options.size = -1;
  CHECK_THAT(says(options), ContainsSubstring("size is -1, expected 1 or more, or 0 for the"));
  options.size = 0;
  write_bytes(folder / "train/dog/2.gif", "four");
  CHECK_THAT(says(options), ContainsSubstring("train/dog/2.gif' has 4 bytes, expected 3"));
  CHECK_THAT(message([&] { (void)load_image_folder("/no/such", gif, Grey{}); }),
             ContainsSubstring("'/no/such' cannot be opened: No such file"));
}

TEST_CASE("damaged tar files are refused and never read past their end", "[data]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x.tar").string();
  const auto says = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    return message([&] { (void)load_image_folder(path, gif, Grey{}); });
  };
  const std::string good = tar_entry("a/1.gif", grey(1)) + tar_entry("a/2.gif", grey(2));
  CHECK(says(good + tar_end) == "nothing");
  CHECK(says(good + tar_end.substr(512)) ==
        "nothing");  // one block of zeros has no image behind it
  CHECK_THAT(says(good), ContainsSubstring("x.tar' is cut off: it has 2048 bytes, and at byte 2048 "
                                           "there is neither another file nor the block of zeros"));
  CHECK_THAT(says(good.substr(0, 1024)), ContainsSubstring("is cut off"));  // an image less
  CHECK_THAT(says(good.substr(0, 1024 + 100)), ContainsSubstring("is cut off"));
  CHECK_THAT(says(good + tar_end.substr(0, 511)), ContainsSubstring("is cut off"));
  CHECK_THAT(says(""), ContainsSubstring("is no tar file: it has 0 bytes"));
  CHECK_THAT(says("\x1f\x8b" + good.substr(2)), ContainsSubstring("gunzip"));
  CHECK_THAT(says("GIF8" + good.substr(4)), ContainsSubstring("is no tar file that can be read"));
  std::string damaged = good;
  damaged[1024 + 3] = '?';
  CHECK_THAT(says(damaged),
             ContainsSubstring("is damaged: the checksum at byte 1024 does not fit"));
  CHECK_THAT(says(good.substr(0, 1024 + 513)),
             ContainsSubstring("is cut off: it has 1537 bytes, and 'a/2.gif' at byte 1024 has 3"));
  std::string huge = tar_entry("a/1.gif", grey(1));
  const std::size_t old_sum = std::strtoul(huge.data() + 148, nullptr, 8);
  const std::size_t old_size = std::size_t{'0'} * 10 + '3';
  set_field(huge, 124, std::string("\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12));
  set_field(huge, 148, octal(old_sum - old_size + 0x80 + 8 * 0xff, 6));
  CHECK_THAT(says(huge), ContainsSubstring("is cut off"));
  for (std::size_t bytes = 0; bytes < good.size(); bytes += 97) {
    CHECK_THAT(says(good.substr(0, bytes)),
               ContainsSubstring("is cut off") || ContainsSubstring("is no tar file"));
  }
}

TEST_CASE("no reader of data waits for a named pipe", "[data]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "set/a");
  const std::string image = (folder / "set/a/1.gif").string();
  const std::string pipe = (folder / "pipe").string();
  REQUIRE(::mkfifo(image.c_str(), 0600) == 0);
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto refused = [](const std::function<void()>& work) {
    return tutti_test::in_bounds(256 << 20, work).find("it is a named pipe, not a regular file") !=
           std::string::npos;
  };
  CHECK(refused([&] { load_image_folder((folder / "set").string(), gif, Grey{}); }));
  CHECK(refused([&] { load_image_folder(pipe, gif, Grey{}); }));
  CHECK(refused([&] { tutti::data::load_idx(pipe); }));
  CHECK(refused([&] { tutti::data::load_cifar10_batches({pipe}); }));
  CHECK(refused([&] { tutti::data::TokenBlocks blocks(pipe); }));
}

#ifdef TUTTI_WITH_JPEG

TEST_CASE("a tar file of JPEG images becomes tensors", "[data][jpeg]") {
  const TemporaryFolder folder;
  write_bytes(folder / "set.tar", tar_entry("a/1.jpg", encode_jpeg(picture(), JCS_RGB)) +
                                      tar_entry("b/2.JPEG", encode_jpeg(picture(), JCS_RGB)) +
                                      tar_end);
  const auto set = load_image_folder((folder / "set.tar").string());
  CHECK(set.images.sizes() == at::IntArrayRef({2, 3, 16, 24}));
  CHECK(set.images[0].equal(set.images[1]));
  CHECK(set.labels.equal(at::arange(2)));
  CHECK(load_image_folder((folder / "set.tar").string(), {.size = 8}).images.size(-1) == 8);
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
