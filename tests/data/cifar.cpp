#include <tutti/data/cifar.hpp>

#include <functional>
#include <string>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::data::Split;

namespace {

// Records whose labels count from `first`, with byte (label + position) % 256 at each position.
std::string records(int first, int count) {
  std::string out;
  for (int label = first; label < first + count; ++label) {
    out.push_back(static_cast<char>(label));
    for (int i = 0; i < 3072; ++i) {
      out.push_back(static_cast<char>((label + i) % 256));
    }
  }
  return out;
}

}  // namespace

TEST_CASE("CIFAR-10's records become planar images and labels, file after file", "[data][law]") {
  const TemporaryFolder folder;
  write_bytes(folder / "data_batch_2.bin", records(7, 3));
  write_bytes(folder / "data_batch_1.bin", records(2, 2));
  write_bytes(folder / "test_batch.bin", records(0, 1));
  write_bytes(folder / "batches.meta.txt", "airplane\n");

  const auto train = tutti::data::load_cifar10(folder.path().string());
  CHECK(train.images.sizes() == at::IntArrayRef({5, 3, 32, 32}));
  CHECK(train.images.scalar_type() == at::kByte);
  CHECK(train.labels.equal(at::tensor({2, 3, 7, 8, 9}, at::kLong)));
  CHECK(train.images[4].flatten().equal(at::arange(9, 9 + 3072).remainder(256).to(at::kByte)));
  CHECK(train.images[0][1][2][3].item<int>() == (2 + 1024 + 2 * 32 + 3) % 256);

  const auto test = tutti::data::load_cifar10(folder.path().string(), Split::test);
  CHECK(test.labels.equal(at::zeros({1}, at::kLong)));
  CHECK(test.classes.at(9) == "truck");
}

TEST_CASE("files that are not CIFAR-10's are refused with their name and fault", "[data]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x.bin").string();
  const auto says = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    const std::string text = message([&] { (void)tutti::data::load_cifar10_batches({path}); });
    CHECK_THAT(text, ContainsSubstring("'" + path + "'") || ContainsSubstring("nothing"));
    return text;
  };
  CHECK(says(records(0, 10)) == "nothing");
  CHECK_THAT(says(""),
             ContainsSubstring("has 0 bytes, expected a multiple of 3073 and more than 0"));
  CHECK_THAT(says(records(0, 2).substr(1)),
             ContainsSubstring("has 6145 bytes, expected a multiple of 3073") &&
                 ContainsSubstring("unpacked and whole"));
  CHECK_THAT(says(std::string(2 * 3074, '\1')), ContainsSubstring("CIFAR-100"));
  CHECK_THAT(says(records(9, 2)), ContainsSubstring("has label 10 in record 1, expected 0 to 9"));
  CHECK_THAT(message([&] { (void)tutti::data::load_cifar10_batches({path, "/no/such"}); }),
             ContainsSubstring("'/no/such' cannot be opened: No such file"));
  CHECK_THAT(message([&] { (void)tutti::data::load_cifar10_batches({folder.path().string()}); }),
             ContainsSubstring("it is a folder, not a regular file"));
  CHECK_THROWS_WITH(tutti::data::load_cifar10_batches({}), ContainsSubstring("there are no files"));
}

TEST_CASE("folders without CIFAR-10's files are refused", "[data]") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  CHECK_THAT(message([&] { (void)tutti::data::load_cifar10(path); }),
             ContainsSubstring("has no data_batch_*.bin; expected the folder of CIFAR-10's"));
  CHECK_THAT(message([&] { (void)tutti::data::load_cifar10(path, Split::test); }),
             ContainsSubstring("has no test_batch.bin"));
  CHECK_THAT(message([&] { (void)tutti::data::load_cifar10(path + "/none"); }),
             ContainsSubstring("is no folder") && ContainsSubstring("load_cifar10_batches"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
