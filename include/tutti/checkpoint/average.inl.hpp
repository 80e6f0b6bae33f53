// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/average.hpp>

namespace tutti::checkpoint::detail {

// The sum of floating tensors in 64 bits, else the latest value.
struct Summed {
  at::Tensor sum;
  at::Tensor latest;
};

// Adds a file's tensors. first: whose names these have to be.
TUTTI_INLINE void add_weights(std::vector<std::pair<std::string, Summed>>& sums,
                              const std::string& first, const std::string& path) {
  const Archive archive = read_weights(path);
  const bool begins = sums.empty();
  std::size_t seen = 0;
  archive.each_leaf([&](const std::string& name, const Archive::Leaf& leaf) {
    const at::Tensor& tensor = *leaf.tensor();
    if (begins) {
      sums.emplace_back(name, Summed{});
    }
    const auto found = begins ? sums.end() - 1
                              : std::find_if(sums.begin(), sums.end(),
                                             [&](const auto& one) { return one.first == name; });
    TUTTI_CHECK(found != sums.end(), "average_weights: '", path, "' has the tensor '", name,
                "', which '", first, "' lacks; average checkpoints of one model");
    Summed& own = found->second;
    TUTTI_CHECK(begins || (own.latest.sizes() == tensor.sizes() &&
                           own.latest.scalar_type() == tensor.scalar_type()),
                "average_weights: '", name, "' is ", tensor.scalar_type(), tensor.sizes(), " in '",
                path, "' and ", own.latest.scalar_type(), own.latest.sizes(), " in '", first,
                "'; average checkpoints of one model");
    if (tensor.is_floating_point() || tensor.is_complex()) {
      const auto wide = tensor.is_complex() ? at::kComplexDouble : at::kDouble;
      own.sum = begins ? tensor.to(wide, /*non_blocking=*/false, /*copy=*/true)
                       : own.sum.add_(tensor.to(wide));
    }
    own.latest = tensor;
    ++seen;
  });
  TUTTI_CHECK(seen == sums.size(), "average_weights: '", path, "' has ", seen, " tensors and '",
              first, "' ", sums.size(), "; average checkpoints of one model");
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE std::vector<std::string> last_checkpoints(const std::filesystem::path& folder,
                                                       std::int64_t count) {
  TUTTI_CHECK_VALUE(count >= 1, "last_checkpoints: count is ", count, ", expected 1 or more");
  TUTTI_CHECK(detail::is_folder(folder), "last_checkpoints: there is no folder '", folder.string(),
              "'");
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const bool link = std::filesystem::is_symlink(entry.symlink_status(error));
    if (link || entry.path().filename().string().starts_with('.') ||
        !detail::is_folder(entry.path())) {
      continue;
    }
    try {
      found.emplace_back(detail::read_manifest(entry.path()).meta.get<std::int64_t>("batch"),
                         entry.path().string());
    } catch (const c10::Error&) {
      continue;  // another folder
    }
  }
  TUTTI_CHECK(!found.empty(), "last_checkpoints: the folder '", folder.string(),
              "' has no checkpoint; name a run's save_folder");
  std::sort(found.begin(), found.end());
  const std::size_t first = found.size() - std::min(found.size(), static_cast<std::size_t>(count));
  std::vector<std::string> out;
  for (std::size_t i = first; i < found.size(); ++i) {
    out.push_back(found[i].second);
  }
  return out;
}

TUTTI_INLINE Archive average_weights(const std::vector<std::string>& paths) {
  TUTTI_CHECK_VALUE(!paths.empty(),
                    "average_weights: there is no checkpoint to average; pass at least one path");
  std::vector<std::pair<std::string, detail::Summed>> sums;
  for (const std::string& path : paths) {
    detail::add_weights(sums, paths.front(), path);
  }
  Archive out;
  for (auto& [name, own] : sums) {
    out.put(name, own.sum.defined()
                      ? own.sum.div_(static_cast<double>(paths.size())).to(own.latest.scalar_type())
                      : own.latest);
  }
  return out;
}

}  // namespace tutti::checkpoint
