// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/module_state.hpp>

namespace tutti::checkpoint {

TUTTI_INLINE std::string LoadReport::text(std::size_t shown) const {
  std::ostringstream out;
  const auto list = [&](const char* title, const std::vector<std::string>& names) {
    if (names.empty()) {
      return;
    }
    out << "\n  " << names.size() << ' ' << title << ':';
    for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) {
      out << "\n    " << names[i];
    }
    if (names.size() > shown) {
      out << "\n    and " << names.size() - shown << " more";
    }
  };
  list("missing (the model has them, the file has not)", missing);
  list("unexpected (the file has them, the model has not)", unexpected);
  list("different", mismatched);
  return out.str();
}

TUTTI_INLINE std::vector<std::pair<std::string, at::Tensor>> module_tensors(
    const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) {
      if (item.value().defined()) {
        out.emplace_back(item.key(), item.value());
      }
    }
  }
  return out;
}

TUTTI_INLINE void save_module(const torch::nn::Module& module, Archive& archive) {
  for (const auto& [name, tensor] : module_tensors(module)) {
    archive.put(name, tensor.detach());
  }
}

}  // namespace tutti::checkpoint

namespace tutti::checkpoint {

TUTTI_INLINE std::string checksum(const torch::nn::Module& module,
                                  const std::vector<std::string>& names) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : module_tensors(module)) {
    tensors.emplace(name, tensor);
  }
  tutti::detail::Xxh64 hash;
  for (const std::string& name : names) {
    const auto found = tensors.find(name);
    TUTTI_CHECK(found != tensors.end(), "checkpoint: the model has no tensor '", name, "'");
    const at::Tensor plain = found->second.detach().cpu().contiguous();
    const std::string head = c10::str(name, ' ', plain.scalar_type(), ' ', plain.sizes(), '\n');
    hash.update(head.data(), head.size());
    if (plain.nbytes() > 0) {
      hash.update(plain.const_data_ptr(), plain.nbytes());
    }
  }
  return hash.text();
}

}  // namespace tutti::checkpoint

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::map<std::string, at::Tensor> named_tensors(const Archive& archive,
                                                             const ModuleLoadOptions& options,
                                                             LoadReport& report) {
  std::map<std::string, at::Tensor> out;
  archive.each_leaf([&](std::string name, const Archive::Leaf& leaf) {
    if (!options.strip_prefix.empty() && name.starts_with(options.strip_prefix)) {
      name.erase(0, options.strip_prefix.size());
    }
    const at::Tensor* tensor = leaf.tensor();
    TUTTI_CHECK(tensor != nullptr, "checkpoint: '", name, "' among the weights is no tensor");
    if (matches_any(options.ignore, options.ignore_prefix + name)) {
      report.ignored.push_back(name);
    } else {
      TUTTI_CHECK(out.emplace(name, *tensor).second, "checkpoint: two weights are named '", name,
                  "' once the prefix '", options.strip_prefix, "' is removed");
    }
  });
  return out;
}

TUTTI_INLINE std::string difference(const at::Tensor& own, const at::Tensor& saved,
                                    const ModuleLoadOptions& options) {
  std::ostringstream out;
  const at::IntArrayRef sizes = options.sizes_in_file ? options.sizes_in_file(own) : own.sizes();
  if (sizes != saved.sizes()) {
    out << "shape " << saved.sizes() << " in the file, " << sizes << " in the model";
  } else if (own.scalar_type() != saved.scalar_type() && !options.convert_dtype) {
    out << "type " << saved.scalar_type() << " in the file, " << own.scalar_type()
        << " in the model; checkpoint::load_module converts with convert_dtype";
  }
  return out.str();
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE LoadReport match_module(const torch::nn::Module& module, const Archive& archive,
                                     const ModuleLoadOptions& options,
                                     std::vector<std::pair<at::Tensor, at::Tensor>>& copies) {
  LoadReport report;
  auto saved = detail::named_tensors(archive, options, report);
  std::map<const void*, std::pair<std::string, at::Tensor>> sources;  // by tensor object: ties once
  std::vector<std::pair<std::string, at::Tensor>> absent;
  for (const auto& [name, own] : module_tensors(module)) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      absent.emplace_back(name, own);
      continue;
    }
    const at::Tensor source = found->second;
    saved.erase(found);
    std::string reason = detail::difference(own, source, options);
    const auto [first, is_first] = sources.try_emplace(own.unsafeGetTensorImpl(), name, source);
    if (reason.empty() && !is_first && !source.is_meta() && !first->second.second.equal(source)) {
      reason = "tied to " + first->second.first + " in the model, other values in the file";
    }
    if (!reason.empty()) {
      report.mismatched.push_back(name + ": " + reason);
      continue;
    }
    copies.emplace_back(own, source);
    report.loaded.push_back(name);
  }
  for (const auto& [name, own] : absent) {
    if (sources.count(own.unsafeGetTensorImpl()) != 0) {
      continue;
    }
    if (!detail::matches_any(options.ignore, options.ignore_prefix + name)) {
      report.missing.push_back(name);
    } else if (std::find(report.ignored.begin(), report.ignored.end(), name) ==
               report.ignored.end()) {
      report.ignored.push_back(name);
    }
  }
  for (const auto& [name, tensor] : saved) {
    report.unexpected.push_back(name);
  }
  TUTTI_CHECK(report.complete() || !options.strict,
              "checkpoint: the weights do not fit the model:", report.text(),
              "\nLoad with strict = false to take what fits, or ignore names by globs.");
  return report;
}

TUTTI_INLINE LoadReport load_module(torch::nn::Module& module, const Archive& archive,
                                    const ModuleLoadOptions& options) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  LoadReport report = match_module(module, archive, options, copies);
  const c10::AutoGradMode no_grad(false);
  for (auto& [own, source] : copies) {
    tutti::detail::copy_values(own, source);
  }
  return report;
}

}  // namespace tutti::checkpoint
