// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/surgery.hpp>

namespace tutti::surgery::detail {

TUTTI_INLINE std::string layer_name(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
  if (name.ends_with("Impl")) {
    name.resize(name.size() - 4);
  }
  return name;
}

TUTTI_INLINE std::string listed(const std::vector<std::string>& paths, std::size_t most) {
  std::ostringstream text;
  for (std::size_t i = 0; i < paths.size() && i < most; ++i) {
    text << (i == 0 ? "" : ", ") << paths[i];
  }
  if (paths.size() > most) {
    text << " and " << paths.size() - most << " more";
  }
  return text.str();
}

TUTTI_INLINE std::string replaceable_name(const std::string& layer) {
  const std::string_view plain = "torch::nn::";
  return layer.starts_with(plain) ? "tutti::nn::" + layer.substr(plain.size())
                                  : "tutti::nn::Replaceable";
}

TUTTI_INLINE std::string listed_with_reasons(const std::vector<Kept>& kept) {
  std::vector<std::string> reasons;
  for (const Kept& layer : kept) {
    if (std::find(reasons.begin(), reasons.end(), layer.why) == reasons.end()) {
      reasons.push_back(layer.why);
    }
  }
  std::string text;
  for (const std::string& why : reasons) {
    std::vector<std::string> paths;
    for (const Kept& layer : kept) {
      if (layer.why == why) {
        paths.push_back(layer.path);
      }
    }
    text += (text.empty() ? "" : "; ") + listed(paths) + " (" + why + ")";
  }
  return text;
}

TUTTI_INLINE void warn_skipped(const std::vector<std::string>& skipped, const std::string& layer,
                               std::string_view who) {
  if (skipped.empty()) {
    return;
  }
  TORCH_WARN(who, ": ", skipped.size(), " of the ", layer, " layers could not be replaced (",
             listed(skipped), "), because their parents call them directly; declare them as ",
             replaceable_name(layer),
             " (same options, same parameter names; classes of your own derive from its Impl), or "
             "put them into a Sequential.");
}

}  // namespace tutti::surgery::detail

namespace tutti::surgery {

TUTTI_INLINE void report_none(IfNone if_none, std::string_view what, std::string_view who,
                              const std::vector<Kept>& kept) {
  const std::string why = kept.empty() ? "the model has none below its root"
                                       : "it passed over " + detail::listed_with_reasons(kept);
  TUTTI_CHECK(if_none != IfNone::error, who, ": no ", what, " was replaced: ", why, ".");
  if (if_none == IfNone::warn) {
    TORCH_WARN(who, ": no ", what, " was replaced, so it has no effect on this model: ", why, ".");
  }
}

}  // namespace tutti::surgery
