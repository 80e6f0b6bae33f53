// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/optimizer_state.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE void FieldSaver::operator()(const char* name,
                                         const std::vector<at::Tensor>& value) const {
  Archive& list = archive.child(name);
  for (std::size_t i = 0; i < value.size(); ++i) {
    (*this).at(list, i, value[i]);
  }
}

TUTTI_INLINE void FieldSaver::at(Archive& list, std::size_t i, const at::Tensor& tensor) {
  if (tensor.defined()) {
    list.put(std::to_string(i), tensor.detach());
  } else {
    list.put(std::to_string(i), "undefined");
  }
}

TUTTI_INLINE void FieldLoader::operator()(const char* name,
                                          std::tuple<double, double>& value) const {
  const auto pair = archive.get<std::vector<double>>(name);
  TUTTI_CHECK(pair.size() == 2, "checkpoint: '", archive.path(), "/", name, "' has ", pair.size(),
              " values, expected 2");
  value = {pair[0], pair[1]};
}

TUTTI_INLINE void FieldLoader::operator()(const char* name, std::vector<at::Tensor>& value) const {
  const Archive& list = archive.child(name);
  value.clear();
  for (const auto& entry : list.entries()) {
    const bool undefined = entry.kind() == "text";
    value.push_back(undefined ? at::Tensor() : own(list.tensor(entry.name)));
  }
}

TUTTI_INLINE const OptimizerKind* torch_optimizer(const torch::optim::Optimizer& optimizer) {
  namespace to = torch::optim;
  static const OptimizerKind kinds[] = {
      kind<to::SGD, to::SGDOptions, to::SGDParamState>("torch::optim::SGD"),
      kind<to::Adam, to::AdamOptions, to::AdamParamState>("torch::optim::Adam"),
      kind<to::AdamW, to::AdamWOptions, to::AdamWParamState>("torch::optim::AdamW"),
      kind<to::RMSprop, to::RMSpropOptions, to::RMSpropParamState>("torch::optim::RMSprop"),
      kind<to::Adagrad, to::AdagradOptions, to::AdagradParamState>("torch::optim::Adagrad"),
      kind<to::LBFGS, to::LBFGSOptions, to::LBFGSParamState>("torch::optim::LBFGS"),
  };
  for (const auto& known : kinds) {
    if (known.type == typeid(optimizer)) {
      return &known;
    }
  }
  return nullptr;
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::vector<at::Tensor> flat_parameters(const Optimizer& optimizer) {
  std::vector<at::Tensor> out;
  for (const auto& group : optimizer.param_groups()) {
    out.insert(out.end(), group.params().begin(), group.params().end());
  }
  return out;
}

TUTTI_INLINE std::vector<std::string> parameter_names(const std::vector<at::Tensor>& parameters,
                                                      const torch::nn::Module* model) {
  std::map<const void*, std::string> names;
  if (model != nullptr) {
    for (const auto& item : model->named_parameters()) {
      names.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
    }
  }
  std::vector<std::string> out;
  for (const auto& parameter : parameters) {
    const auto found = names.find(parameter.unsafeGetTensorImpl());
    out.push_back(found == names.end() ? "" : found->second);
  }
  return out;
}

TUTTI_INLINE std::vector<std::string> parameter_shapes(const std::vector<at::Tensor>& parameters) {
  std::vector<std::string> out;
  for (const auto& parameter : parameters) {
    out.push_back(c10::str(parameter.sizes()));
  }
  return out;
}

TUTTI_INLINE void check_shapes(const std::vector<std::string>& own,
                               const std::vector<std::string>& saved,
                               const std::vector<std::size_t>& places,
                               const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < own.size(); ++i) {
    TUTTI_CHECK(places[i] < saved.size() && saved[places[i]] == own[i],
                "checkpoint: the optimizer's parameter ", i,
                names[i].empty() ? "" : " ('" + names[i] + "')", " is ",
                places[i] < saved.size() ? saved[places[i]] : "absent", " in the file, ", own[i],
                " in this run");
  }
}

TUTTI_INLINE void save_torch_optimizer(const Optimizer& optimizer, const OptimizerKind& kind,
                                       Archive& archive) {
  Archive& groups = archive.child("groups");
  for (const auto& group : optimizer.param_groups()) {
    kind.save_options(group.options(), groups.child(std::to_string(groups.size())));
  }
  Archive& states = archive.child("state");
  const auto parameters = flat_parameters(optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
    if (found != optimizer.state().end()) {
      kind.save_state(*found->second, states.child(std::to_string(i)));
    }
  }
}

TUTTI_INLINE std::vector<std::size_t> match_parameters(const std::vector<std::string>& own,
                                                       const std::vector<std::string>& saved,
                                                       const std::string& what) {
  TUTTI_CHECK(own.size() == saved.size(), "checkpoint: ", what, " has ", saved.size(),
              " parameters in the file, ", own.size(), " in this run");
  std::vector<std::size_t> out(own.size());
  const auto unnamed = [](const std::string& name) { return name.empty(); };
  if (std::any_of(own.begin(), own.end(), unnamed) ||
      std::any_of(saved.begin(), saved.end(), unnamed)) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = i;
    }
    return out;
  }
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    places.emplace(saved[i], i);
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto found = places.find(own[i]);
    TUTTI_CHECK(
        found != places.end(), "checkpoint: ", what, " optimizes '", own[i],
        "' in this run, for which the file has no state; was the model or its surgery changed?");
    out[i] = found->second;
  }
  return out;
}

TUTTI_INLINE void load_torch_optimizer(Optimizer& optimizer, const OptimizerKind& kind,
                                       const Archive& archive,
                                       const std::vector<std::size_t>& places) {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    options.push_back(kind.load_options(archive.child("groups").child(std::to_string(i))));
  }
  const Archive& saved = archive.child("state");
  std::decay_t<decltype(optimizer.state())> states;
  const auto parameters = flat_parameters(optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string place = std::to_string(places[i]);
    if (saved.contains(place)) {
      states[parameters[i].unsafeGetTensorImpl()] =
          kind.load_state(saved.child(place), parameters[i]);
    }
  }
  for (std::size_t i = 0; i < options.size(); ++i) {
    optimizer.param_groups()[i].set_options(std::move(options[i]));
  }
  optimizer.state() = std::move(states);
}

TUTTI_INLINE std::vector<std::int64_t> group_sizes(const Optimizer& optimizer) {
  std::vector<std::int64_t> out;
  for (const auto& group : optimizer.param_groups()) {
    out.push_back(static_cast<std::int64_t>(group.params().size()));
  }
  return out;
}

TUTTI_INLINE std::string listed(const std::vector<std::int64_t>& numbers) {
  std::string out;
  for (const std::int64_t number : numbers) {
    out += (out.empty() ? "" : ", ") + std::to_string(number);
  }
  return "[" + out + "]";
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE void check_saves(const torch::optim::Optimizer& optimizer) {
  TUTTI_CHECK(dynamic_cast<const Stateful*>(&optimizer) != nullptr ||
                  detail::torch_optimizer(optimizer) != nullptr,
              "checkpoint: the optimizer ", detail::optimizer_class(optimizer),
              " cannot be saved; derive it from tutti::Stateful too ",
              "and write its save(Archive&) const and load(const Archive&)");
}

TUTTI_INLINE void save_optimizer(const torch::optim::Optimizer& optimizer, Archive& archive,
                                 const torch::nn::Module* model) {
  check_saves(optimizer);
  const auto* stateful = dynamic_cast<const Stateful*>(&optimizer);
  const detail::OptimizerKind* kind = detail::torch_optimizer(optimizer);
  archive.put("class", detail::optimizer_class(optimizer));
  archive.put("group_sizes", detail::group_sizes(optimizer));
  const auto parameters = detail::flat_parameters(optimizer);
  archive.put("parameters", detail::parameter_names(parameters, model));
  archive.put("shapes", detail::parameter_shapes(parameters));
  if (stateful != nullptr) {
    stateful->save(archive.child("own"));
  } else {
    detail::save_torch_optimizer(optimizer, *kind, archive);
  }
}

TUTTI_INLINE void load_optimizer(torch::optim::Optimizer& optimizer, const Archive& archive,
                                 const torch::nn::Module* model) {
  const std::string own_class = detail::optimizer_class(optimizer);
  const auto saved_class = archive.get<std::string>("class");
  TUTTI_CHECK(saved_class == own_class, "checkpoint: the optimizer is ", saved_class,
              " in the file, ", own_class, " in this run");
  const auto sizes = archive.get<std::vector<std::int64_t>>("group_sizes");
  TUTTI_CHECK(sizes == detail::group_sizes(optimizer), "checkpoint: the parameter groups of ",
              own_class, " have sizes ", detail::listed(sizes), " in the file, ",
              detail::listed(detail::group_sizes(optimizer)), " in this run");
  const auto parameters = detail::flat_parameters(optimizer);
  const auto own = detail::parameter_names(parameters, model);
  const auto saved = archive.get<std::vector<std::string>>("parameters");
  const auto places = detail::match_parameters(own, saved, own_class);
  detail::check_shapes(detail::parameter_shapes(parameters),
                       archive.get<std::vector<std::string>>("shapes"), places, own);
  auto* stateful = dynamic_cast<Stateful*>(&optimizer);
  if (stateful != nullptr || own_class == "torch::optim::LBFGS") {
    for (std::size_t i = 0; i < places.size(); ++i) {
      TUTTI_CHECK(places[i] == i, "checkpoint: ", own_class,
                  " has its parameters in another order ", "in the file: parameter ", i, " is '",
                  saved[i], "' there, '", own[i], "' in this run");
    }
  }
  if (stateful != nullptr) {
    stateful->load(archive.child("own"));
  } else if (const detail::OptimizerKind* kind = detail::torch_optimizer(optimizer)) {
    detail::load_torch_optimizer(optimizer, *kind, archive, places);
  } else {
    TUTTI_CHECK(false, "checkpoint: the optimizer ", own_class,
                " cannot be loaded; derive it from ",
                "tutti::Stateful too and write its save(Archive&) const and load(const Archive&)");
  }
}

}  // namespace tutti::checkpoint
