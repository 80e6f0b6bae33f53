// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/shard_urls.hpp>
#include <tutti/data/detail/web_shard.hpp>
#include <tutti/data/web_sample.hpp>

/// Tar files in the layout of Python's webdataset.
namespace tutti::data {

/// The paths of a list of shards: `train-{000..146}.tar::more-{a,b}.tar::rest-*.tar`. Files that *,
/// ? and [...] stand for come in the order of their bytes. Throws c10::ValueError when a brace has
/// no other one, a name is empty, or one is no file; c10::Error when no file fits a *, ? or [...].
inline std::vector<std::string> shard_paths(const std::string& urls) {
  return detail::expand_shards(urls);
}

/// Options of WebDataset.
struct WebDatasetOptions {
  std::vector<std::pair<std::string, std::string>> fields{};  ///< as WebDecoding's
  std::function<Batch(const WebSample& sample)> decode{};     ///< likewise
};

/// Samples in tar files, any of them at once: a data set for DataLoader.
///
///     tutti::data::WebDataset photos{"train-{000..146}.tar",
///                                    {.fields = {{"inputs", "jpg;png"}, {"targets", "cls"}}}};
///     tutti::DataLoader train{photos, {.batch_size = 64, .shuffle = true, .num_workers = 4}};
///
/// The tar files are indexed once by their headers, 16 bytes a sample, and read where they lie. The
/// loader shuffles them exactly, deals samples to ranks and resumes at once; for more tar files
/// than are worth indexing there is WebDatasetLoader. A sample is neighbouring members whose names
/// are equal up to the first dot of their last part; folders, links, names without a dot and those
/// that begin with `__x__` are passed over. Copies share the index.
/// Source: webdataset 1.0.2; Aizman, Maltby and Breuel, "High Performance I/O For Large Scale Deep
/// Learning", 2019.
class WebDataset {
 public:
  /// Throws c10::Error, naming the tar file and the place: it cannot be opened, is damaged or cut
  /// off, a sample has a field twice, a name leads outside, or there is no sample at all.
  explicit WebDataset(const std::string& urls, WebDatasetOptions options = {})
      : WebDataset(shard_paths(urls), std::move(options)) {}

  explicit WebDataset(std::vector<std::string> shards, WebDatasetOptions options = {})
      : decoding_{std::move(options.fields), std::move(options.decode)},
        index_(std::make_shared<Index>()) {
    decoding_.check("WebDataset");
    index_->paths = std::move(shards);
    std::vector<std::vector<detail::WebRange>> found(index_->paths.size());
    tutti::detail::parallel_each(std::ssize(found), [&](std::int64_t i) {
      const auto shard = static_cast<std::size_t>(i);
      found[shard] = detail::web_samples(index_->paths[shard]);
    });
    for (const auto& samples : found) {
      index_->before.push_back(std::ssize(index_->samples));
      index_->samples.insert(index_->samples.end(), samples.begin(), samples.end());
    }
    TUTTI_CHECK(!index_->samples.empty(), "WebDataset: the ", index_->paths.size(),
                " tar files have no sample, expected members such as 000.jpg and 000.cls");
  }

  /// Samples.
  [[nodiscard]] std::int64_t size() const { return std::ssize(index_->samples); }

  /// Example `index`, 0 .. size() - 1: the sample as options.fields or options.decode say.
  /// Throws c10::Error that names the tar file, the sample and the field.
  [[nodiscard]] Batch get(std::int64_t index) const { return decoding_(sample(index)); }

  /// Sample `index` as it stands in its tar file. Throws c10::IndexError out of range.
  [[nodiscard]] WebSample sample(std::int64_t index) const {
    TUTTI_CHECK_INDEX(index >= 0 && index < size(), "WebDataset: index is ", index,
                      ", expected 0 to ", size() - 1);
    const auto after = std::upper_bound(index_->before.begin(), index_->before.end(), index);
    const auto shard = static_cast<std::size_t>(after - index_->before.begin() - 1);
    const detail::WebRange range = index_->samples[static_cast<std::size_t>(index)];
    const auto file = index_->files.get(index_->paths[shard]);
    return {file->path(), file->read(range.begin, range.end - range.begin)};
  }

  /// The paths of the tar files.
  [[nodiscard]] const std::vector<std::string>& shards() const { return index_->paths; }

 private:
  struct Index {
    std::vector<std::string> paths{};
    std::vector<std::int64_t> before{};  // samples of the tar files before each
    std::vector<detail::WebRange> samples{};
    detail::OpenFiles files{};
  };

  WebDecoding decoding_;
  std::shared_ptr<Index> index_;
};

}  // namespace tutti::data
