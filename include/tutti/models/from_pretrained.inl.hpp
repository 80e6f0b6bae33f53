// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/from_pretrained.hpp>

namespace tutti::models {

TUTTI_INLINE std::string PretrainedReport::text(std::size_t shown) const {
  std::string out = model + " from '" + path + "': " + std::to_string(taken.size()) + " tensors";
  const auto list = [&](const char* title, std::size_t count, auto&& name) {
    out += count == 0 ? "" : "\n  " + std::to_string(count) + ' ' + title + ':';
    for (std::size_t i = 0; i < count && i < shown; ++i) {
      out += "\n    " + name(i);
    }
    out += count > shown ? "\n    and " + std::to_string(count - shown) + " more" : "";
  };
  list("renamed", renamed.size(),
       [&](std::size_t i) { return renamed[i].first + " -> " + renamed[i].second; });
  list("of another shape, adapted", adapted.size(), [&](std::size_t i) { return adapted[i]; });
  list("left out (the file has them, this model has not)", left_out.size(),
       [&](std::size_t i) { return left_out[i]; });
  std::vector<std::string> lacking;
  std::copy_if(initialised.begin(), initialised.end(), std::back_inserter(lacking),
               [&](const std::string& name) {
                 return std::find(resized.begin(), resized.end(), name) == resized.end();
               });
  list("freshly initialised (the file lacks them)", lacking.size(),
       [&](std::size_t i) { return lacking[i]; });
  list("freshly initialised (the file has them in another size)", resized.size(),
       [&](std::size_t i) { return resized[i]; });
  return out;
}

TUTTI_INLINE PretrainedReport load_pretrained(const WeightLayout& layout,
                                              const checkpoint::WeightFiles& files,
                                              const FromPretrainedOptions& options) {
  const detail::LoadPlan plan = detail::plan_load(layout, files, options);
  detail::run_load(plan);
  detail::deliver(plan.report, options);
  return plan.report;
}

}  // namespace tutti::models

namespace tutti::models::detail {

// Brings names of files and of a layout together: the rules of old and partial files.
class LoadPlanner {
 public:
  LoadPlanner(const WeightLayout& layout, const checkpoint::WeightFiles& files,
              const FromPretrainedOptions& options);

  LoadPlan plan();

 private:
  using Stored = checkpoint::StoredTensor;

  std::string_view unwrapped(std::string_view name) const { return name.substr(wrapper_.size()); }
  void find_wrapper();
  static bool begins_with_any(const std::vector<std::string>& beginnings, std::string_view name);
  static bool matches_any(const std::vector<std::string>& globs, std::string_view name);
  std::string todays_name(std::string name) const;
  bool is_old_constant(const std::string& name, const Stored& tensor) const;
  void refuse_other_architectures() const;
  void sort_file();
  void merge_ties();
  bool is_new_counter(const DiskTensor& own) const;
  void match(const DiskTensor& own);
  void take(const DiskTensor& own, const Stored& stored);
  void refuse_differences() const;

  const WeightLayout& layout_;
  const checkpoint::WeightFiles& files_;
  const FromPretrainedOptions& options_;
  std::string wrapper_;  // before all names of the file, and none of the layout
  bool add_prefix_ = false;
  bool strip_prefix_ = false;
  std::map<std::string, const Stored*, std::less<>> sources_;  // by today's name
  LoadPlan plan_;
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
  std::vector<std::string> different_;
  bool head_differs_ = false;
  bool ignoring_helps_ = false;  // there is a tensor with adapt_if_ignored among those
};

TUTTI_INLINE LoadPlan plan_load(const WeightLayout& layout, const checkpoint::WeightFiles& files,
                                const FromPretrainedOptions& options) {
  return LoadPlanner(layout, files, options).plan();
}

TUTTI_INLINE LoadPlanner::LoadPlanner(const WeightLayout& layout,
                                      const checkpoint::WeightFiles& files,
                                      const FromPretrainedOptions& options)
    : layout_(layout), files_(files), options_(options) {
  find_wrapper();
  const std::string& prefix = layout.base_prefix;
  bool own = false;
  bool in_file = false;
  for (const DiskTensor& tensor : layout.tensors) {
    own = own || tensor.name.starts_with(prefix);
  }
  for (const Stored& tensor : files.tensors()) {
    in_file = in_file || unwrapped(tensor.name).starts_with(prefix);
  }
  add_prefix_ = own && !in_file;
  strip_prefix_ = !own && in_file;
}

// What DistributedDataParallel and torch.compile put before names; files of torch.save() come
// without it.
TUTTI_INLINE void LoadPlanner::find_wrapper() {
  const auto begin_so = [](const auto& tensors, const std::string& prefix) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [&](const auto& tensor) { return tensor.name.starts_with(prefix); });
  };
  for (const char* prefix : {"_orig_mod.", "module.", "_orig_mod."}) {
    const std::string longer = wrapper_ + prefix;
    if (!files_.tensors().empty() && begin_so(files_.tensors(), longer) &&
        !begin_so(layout_.tensors, longer)) {
      wrapper_ = longer;
    }
  }
}

TUTTI_INLINE LoadPlan LoadPlanner::plan() {
  plan_.report.path = files_.path();
  plan_.report.model = layout_.model;
  refuse_other_architectures();
  sort_file();
  merge_ties();
  for (const DiskTensor& own : layout_.tensors) {
    match(own);
  }
  refuse_differences();
  return std::move(plan_);
}

TUTTI_INLINE bool LoadPlanner::begins_with_any(const std::vector<std::string>& beginnings,
                                               std::string_view name) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const std::string& beginning) { return name.starts_with(beginning); });
}

TUTTI_INLINE bool LoadPlanner::matches_any(const std::vector<std::string>& globs,
                                           std::string_view name) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return checkpoint::glob_matches(glob, name); });
}

// The name that the layout has for a name in the file.
TUTTI_INLINE std::string LoadPlanner::todays_name(std::string name) const {
  name.erase(0, wrapper_.size());
  if (add_prefix_ && !begins_with_any(layout_.heads, name)) {
    name.insert(0, layout_.base_prefix);
  } else if (strip_prefix_ && name.starts_with(layout_.base_prefix)) {
    name.erase(0, layout_.base_prefix.size());
  }
  for (const auto& [old, today] : layout_.renamed) {
    if (name == old) {
      return today;
    }
  }
  for (const auto& [old, today] : layout_.renamed_ends) {
    if (name == old || name.ends_with('.' + old)) {
      return name.replace(name.size() - old.size(), old.size(), today);
    }
  }
  return name;
}

// What old versions wrote though it can be computed: masks, positions, frequencies.
TUTTI_INLINE bool LoadPlanner::is_old_constant(const std::string& name,
                                               const Stored& tensor) const {
  const auto ends = [&](std::string_view end) {
    return name.ends_with(end) &&
           (name.size() == end.size() || name[name.size() - end.size() - 1] == '.');
  };
  const std::vector<std::int64_t>& shape = tensor.shape;
  const bool square = shape.size() == 4 && shape[0] == 1 && shape[1] == 1 && shape[2] == shape[3];
  return (ends("attn.bias") && square) || ends("attn.masked_bias") || ends("position_ids") ||
         ends("rotary_emb.inv_freq");
}

TUTTI_INLINE void LoadPlanner::refuse_other_architectures() const {
  for (const Stored& tensor : files_.tensors()) {
    for (const auto& [glob, sentence] : layout_.refused) {
      TUTTI_CHECK(!checkpoint::glob_matches(glob, todays_name(tensor.name)), "models: '",
                  tensor.name, "' in '", files_.path(), "': ", sentence);
    }
  }
}

// Gives each tensor of the file its name of today, or sorts it out.
TUTTI_INLINE void LoadPlanner::sort_file() {
  std::map<std::string_view, int> own;
  for (const DiskTensor& tensor : layout_.tensors) {
    TUTTI_CHECK(++own[tensor.name] == 1, "models: the layout of ", layout_.model,
                " has two tensors '", tensor.name, "'");
  }
  for (const auto& [alias, target] : layout_.tied) {
    own[alias] = 1;
  }
  for (const Stored& tensor : files_.tensors()) {
    const std::string name = todays_name(tensor.name);
    if (own.count(name) != 0) {
      const auto [place, is_new] = sources_.emplace(name, &tensor);
      if (!is_new) {
        different_.push_back(name + ": the file has it twice, as " + place->second->name +
                             " and as " + tensor.name);
      }
    } else if (is_old_constant(name, tensor) || matches_any(layout_.ignored, name)) {
      plan_.report.ignored.push_back(tensor.name);
    } else if (matches_any(layout_.left_out, name)) {
      plan_.report.left_out.push_back(tensor.name);
    } else {
      unexpected_.push_back(tensor.name);
    }
  }
}

TUTTI_INLINE bool is_plain(c10::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

// The numbers of two tensors of a file are the same, also where one has a wider type.
TUTTI_INLINE bool same_values(const checkpoint::StoredTensor& a,
                              const checkpoint::StoredTensor& b) {
  if (a.dtype == b.dtype) {
    return a.view().equal(b.view());
  }
  if (!is_plain(a.dtype) || !is_plain(b.dtype)) {
    return false;
  }
  const c10::ScalarType wider = c10::promoteTypes(a.dtype, b.dtype);
  return a.view().to(wider).equal(b.view().to(wider));
}

// An alias stands for its tensor where that is absent, and has to equal it where both are there.
TUTTI_INLINE void LoadPlanner::merge_ties() {
  for (const auto& [alias, target] : layout_.tied) {
    const auto found = sources_.find(alias);
    if (found == sources_.end()) {
      continue;
    }
    const Stored& copy = *found->second;
    const auto [place, is_new] = sources_.emplace(target, &copy);
    const Stored& tensor = *place->second;
    if (!is_new && !same_values(copy, tensor)) {
      different_.push_back(copy.name + ": tied to " + target +
                           " in the model, other values in the file (" + tensor.name +
                           "); set tie_word_embeddings to false to train them apart");
    }
  }
}

// What PyTorch before 0.4.1 did not write beside the running statistics, and other programs do not.
TUTTI_INLINE bool LoadPlanner::is_new_counter(const DiskTensor& own) const {
  constexpr std::string_view counter = "num_batches_tracked";
  return own.name.ends_with(counter) && own.tensor.dim() == 0 &&
         sources_.count(own.name.substr(0, own.name.size() - counter.size()) + "running_mean") != 0;
}

TUTTI_INLINE void LoadPlanner::match(const DiskTensor& own) {
  const auto found = sources_.find(own.name);
  const bool is_head = begins_with_any(layout_.may_be_missing, own.name);
  if (found == sources_.end() && is_new_counter(own)) {
    plan_.copies.push_back({.own = own.tensor, .adapted = at::zeros({}, own.tensor.scalar_type())});
    plan_.report.zeroed.push_back(own.name);
    return;
  }
  if (found == sources_.end()) {
    (is_head && options_.allow_new_heads ? plan_.report.initialised : missing_).push_back(own.name);
    return;
  }
  const Stored& stored = *found->second;
  const auto is_integer = [](c10::ScalarType type) { return c10::isIntegralType(type, true); };
  const c10::ScalarType type = own.tensor.scalar_type();
  const bool adapts = own.adapt || (own.adapt_if_ignored && options_.ignore_mismatched_sizes);
  if (own.tensor.sizes() != at::IntArrayRef(stored.shape) && !adapts) {
    ignoring_helps_ = ignoring_helps_ || own.adapt_if_ignored;
    if (is_head && options_.ignore_mismatched_sizes) {
      plan_.report.initialised.push_back(own.name);
      plan_.report.resized.push_back(own.name);
    } else {
      head_differs_ = head_differs_ || is_head;
      different_.push_back(c10::str(own.name, ": shape ", at::IntArrayRef(stored.shape),
                                    " in the file, ", own.tensor.sizes(), " in the model"));
    }
  } else if (!(is_plain(type) && is_plain(stored.dtype)) &&
             !(is_integer(type) && is_integer(stored.dtype)) && type != stored.dtype) {
    different_.push_back(
        c10::str(own.name, ": type ", stored.dtype, " in the file, ", type, " in the model"));
  } else {
    take(own, stored);
  }
}

TUTTI_INLINE void LoadPlanner::take(const DiskTensor& own, const Stored& stored) {
  plan_.report.taken.push_back(own.name);
  if (stored.name != own.name) {
    plan_.report.renamed.emplace_back(stored.name, own.name);
  }
  if (stored.dtype == at::kBool) {
    static_cast<void>(stored.view());  // whose bytes may be wrong
  }
  plan_.copies.push_back({.own = own.tensor, .stored = &stored});
  if (own.tensor.sizes() != at::IntArrayRef(stored.shape)) {
    plan_.copies.back().adapted =
        own.adapt ? own.adapt(stored.view()) : own.adapt_if_ignored(stored.view());
    plan_.report.adapted.push_back(own.name);
  }
}

TUTTI_INLINE void LoadPlanner::refuse_differences() const {
  if (missing_.empty() && unexpected_.empty() && different_.empty()) {
    return;
  }
  checkpoint::LoadReport report;
  report.missing = missing_;
  report.unexpected = unexpected_;
  report.mismatched = different_;
  std::string hint;
  for (const std::string& name : missing_) {
    if (begins_with_any(layout_.may_be_missing, name)) {
      hint = "\nA head that the file lacks is made freshly with allow_new_heads.";
    }
  }
  if (head_differs_) {
    hint += "\nA head of another size is made freshly with ignore_mismatched_sizes.";
  }
  if (ignoring_helps_) {
    hint +=
        "\nA first convolution is fitted to images of other channels with ignore_mismatched_sizes.";
  }
  TUTTI_CHECK(false, "models: the weights of '", files_.path(), "' do not fit ", layout_.model, ":",
              report.text(), hint);
}

TUTTI_INLINE void run_load(const LoadPlan& plan) {
  const c10::AutoGradMode no_grad(false);
  for (const LoadPlan::Copy& copy : plan.copies) {
    if (copy.adapted.defined()) {
      ::tutti::detail::copy_values(copy.own, copy.adapted);
    } else {
      copy.stored->copy_to(copy.own);
    }
  }
}

TUTTI_INLINE void check_covers(const WeightLayout& layout, const torch::nn::Module& model) {
  std::map<const void*, std::int64_t> covered;  // elements by storage
  for (const DiskTensor& tensor : layout.tensors) {
    covered[tensor.tensor.storage().unsafeGetStorageImpl()] += tensor.tensor.numel();
  }
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    TUTTI_CHECK(covered[tensor.storage().unsafeGetStorageImpl()] >= tensor.numel(),
                "models: the layout of ", layout.model, " lacks the parameter '", parameter.key(),
                "', which would keep its initial values; add it in weight_layout()");
  }
}

TUTTI_INLINE void place_model(torch::nn::Module& model, const FromPretrainedOptions& options) {
  if (options.dtype && *options.dtype != at::kFloat) {
    const c10::AutoGradMode no_grad(false);
    for (at::Tensor& parameter : model.parameters()) {
      parameter.set_data(parameter.to(*options.dtype));
    }
  }
  if (options.device) {
    model.to(*options.device);
  }
}

TUTTI_INLINE void rethrow_for(const PretrainedConfig& config, const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  if (text.find("allocate memory") != std::string_view::npos ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    TUTTI_CHECK(false, config.origin(), ": a model of these sizes does not fit into memory: ",
                text.substr(0, text.find('\n')));
  }
  throw;
}

TUTTI_INLINE void deliver(const PretrainedReport& report, const FromPretrainedOptions& options) {
  if (options.report != nullptr) {
    *options.report = report;
  } else if (!report.initialised.empty()) {
    TORCH_WARN("models: ", report.text());
  }
}

}  // namespace tutti::models::detail
