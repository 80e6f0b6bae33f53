// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/compiled.hpp>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <ATen/ops/cross_entropy_loss.h>

#include <tutti/checkpoint/json_file.hpp>
#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/checkpoint/weights.hpp>
#include <tutti/core/detail/proc.hpp>
#include <tutti/core/detail/set_gradient.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>
#include <tutti/models/detail/compiled_operators.hpp>

namespace tutti {

TUTTI_INLINE CompiledNet::CompiledNet(const std::string& folder, const CompiledOptions& options)
    : programs_(std::make_shared<models::detail::ExportedPrograms>()), folder_(folder) {
  const detail::Json json = checkpoint::read_json(folder + "/compiled.json");
  models::detail::check_sha256(folder, options.expect_sha256);
  try {
    programs_->package = models::detail::read_package(json);
    load_programs(!options.expect_sha256.empty());
  } catch (const std::invalid_argument& error) {
    TUTTI_CHECK(false, "load_compiled: '", folder, "/compiled.json' is refused: ", error.what());
  }
  for (const auto& tensor : programs_->package.inputs) {
    input_names_.push_back(tensor.name);
  }
  for (const auto& tensor : programs_->package.outputs) {
    output_names_.push_back(tensor.name);
  }
  has_gradient_.resize(programs_->package.parameters.size());
  for (const auto& word : programs_->package.backward.out) {
    has_gradient_[word.index] = true;
  }
  add_weights(folder);
  if (!options.weights.empty()) {
    load_weights(options.weights);
  }
}

TUTTI_INLINE void CompiledNet::load_programs(bool by_sha256) {
  using namespace models::detail;
  ExportedPackage& package = programs_->package;
  std::vector<std::tuple<const char*, ExportedProgram*, ProgramRunner*>> all{
      {"forward", &package.forward, &programs_->forward},
      {"backward", &package.backward, &programs_->backward}};
  if (package.has_eval) {
    all.emplace_back("eval", &package.eval, &programs_->eval);
  }
  if (package.has_step) {
    all.emplace_back("step", &package.step, &programs_->step);
  }
  if (!package.is_code) {
    for (const auto& [name, from, to] : all) {
      const auto program =
          std::make_shared<OperatorProgram>(name, from->calls, from->results, from->in.size());
      *to = [program](std::vector<at::Tensor>&& inputs, at::Device device) {
        return program->run(std::move(inputs), device);
      };
    }
    return;
  }
  check_machine(package, folder_, processor_flags(tutti::detail::file_text("/proc/cpuinfo")));
  for (const auto& [name, from, to] : all) {
    check_code(folder_ + "/" + name + ".so", *from, by_sha256);
  }
  for (const auto& [name, from, to] : all) {
    *to = load_code(folder_ + "/" + name + ".so", package.device);
  }
}

TUTTI_INLINE void CompiledNet::add_weights(const std::string& folder) {
  const checkpoint::SafetensorsFile file(folder + "/model.safetensors");
  const auto add = [&](const models::detail::ExportedTensor& wanted, bool is_buffer) {
    TUTTI_CHECK(file.contains(wanted.name), "load_compiled: '", folder,
                "/model.safetensors' has no ", wanted.name, ", which compiled.json lists");
    const at::Tensor tensor = file.read(wanted.name);
    TUTTI_CHECK(models::detail::same_sizes(wanted, tensor), "load_compiled: ", wanted.name, " of '",
                folder, "/model.safetensors' is ", models::detail::text_of(tensor),
                ", and compiled.json says ", models::detail::text_of(wanted));
    detail::ExportedPart& owner = owner_of(wanted.name);
    const std::string leaf = wanted.name.substr(wanted.name.rfind('.') + 1);
    const std::size_t place = owner.add(leaf, tensor, is_buffer, wanted.requires_grad);
    (is_buffer ? buffer_slots_ : parameter_slots_).push_back({&owner, place});
  };
  for (const auto& wanted : programs_->package.parameters) {
    add(wanted, false);
  }
  for (const auto& wanted : programs_->package.buffers) {
    add(wanted, true);
  }
}

TUTTI_INLINE void CompiledNet::load_weights(const std::string& path) {
  checkpoint::ModuleLoadOptions how;
  for (const auto& [name, first] : programs_->package.tied) {
    how.ignore.push_back(name);
  }
  for (const auto& buffer : programs_->package.buffers) {
    if (!buffer.persistent) {
      how.ignore.push_back(buffer.name);
    }
  }
  checkpoint::load_module(*this, checkpoint::read_weights(path), how);
}

TUTTI_INLINE void CompiledNet::save_weights(const std::string& path) {
  std::vector<checkpoint::NamedTensor> tensors;
  std::map<std::string, at::Tensor> by_name;
  const auto& package = programs_->package;
  for (std::size_t i = 0; i < package.parameters.size(); ++i) {
    by_name[package.parameters[i].name] = parameter(i);
  }
  for (std::size_t i = 0; i < package.buffers.size(); ++i) {
    if (package.buffers[i].persistent) {
      by_name[package.buffers[i].name] = buffer(i);
    }
  }
  for (const auto& [name, first] : package.tied) {
    if (const auto found = by_name.find(first); found != by_name.end()) {
      tensors.emplace_back(name, found->second);
    }
  }
  tensors.insert(tensors.end(), by_name.begin(), by_name.end());
  checkpoint::write_safetensors(path, tensors, {{"format", "pt"}});
}

TUTTI_INLINE at::Tensor& CompiledNet::parameter(std::size_t i) {
  return parameter_slots_[i].owner->parameter(parameter_slots_[i].place);
}
TUTTI_INLINE at::Tensor& CompiledNet::buffer(std::size_t i) {
  return buffer_slots_[i].owner->buffer(buffer_slots_[i].place);
}

TUTTI_INLINE at::Tensor CompiledNet::forward(const at::Tensor& input) {
  TUTTI_CHECK(programs_->package.outputs.size() == 1, "CompiledNet: '", folder_, "' has ",
              programs_->package.outputs.size(),
              " outputs, and forward(tensor) gives one; use forward({tensor}), or CompiledModel");
  return forward(std::vector<at::Tensor>{input})[0];
}

TUTTI_INLINE std::vector<at::Tensor> CompiledNet::forward(const std::vector<at::Tensor>& inputs) {
  std::vector<models::detail::KnownSize> known;
  const at::Device device = check(inputs, known);
  const std::vector<at::Tensor> plain = models::detail::contiguous(inputs);
  if (is_training()) {
    models::detail::check_training(programs_->package.symbols, known);
  }
  return is_training() ? train_forward(plain, device) : evaluate(plain, device);
}

TUTTI_INLINE at::Device CompiledNet::check(const std::vector<at::Tensor>& inputs,
                                           std::vector<models::detail::KnownSize>& known) {
  const auto& wanted = programs_->package.inputs;
  TUTTI_CHECK(inputs.size() == wanted.size(), "CompiledNet: '", folder_, "' takes ", wanted.size(),
              " inputs, got ", inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TUTTI_CHECK(inputs[i].defined(), "CompiledNet: the input ", wanted[i].name, " is undefined");
  }
  const at::Device device = parameter_slots_.empty() ? inputs[0].device() : parameter(0).device();
  const auto& package = programs_->package;
  TUTTI_CHECK(
      !package.is_code || c10::DeviceTypeName(device.type(), /*lower_case=*/true) == package.device,
      "CompiledNet: the network is on ", device.str(), ", and the programs of '", folder_,
      "' were compiled for ", package.device,
      "; train on it (.device), or export the model with --data-only");
  check_inputs(inputs, device, known);
  check_weights(device);
  models::detail::check_precision(precision(), device, folder_);
  return device;
}

TUTTI_INLINE void CompiledNet::check_inputs(const std::vector<at::Tensor>& inputs,
                                            at::Device device,
                                            std::vector<models::detail::KnownSize>& known) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const models::detail::ExportedTensor& wanted = programs_->package.inputs[i];
    const at::Tensor& input = inputs[i];
    const std::string cure =
        models::detail::cure_of(wanted, input, device, programs_->package.symbols, known);
    TUTTI_CHECK_VALUE(cure.empty(), "CompiledNet: the input ", wanted.name, " is ",
                      models::detail::text_of(input), " on ", input.device().str(),
                      ", and this model was exported for ", models::detail::text_of(wanted), " on ",
                      device.str(), "; ", cure);
    TUTTI_CHECK(!input.requires_grad() || !at::GradMode::is_enabled(), "CompiledNet: the input ",
                wanted.name,
                " requires a gradient, and an exported model has gradients of its parameters "
                "alone; detach() it");
    models::detail::check_rows(wanted, input);
  }
}

TUTTI_INLINE void CompiledNet::check_weights(at::Device device) {
  const auto& package = programs_->package;
  for (std::size_t i = 0; i < package.parameters.size(); ++i) {
    const at::Tensor& now = parameter(i);
    models::detail::check_weight(package.parameters[i], now, device);
    TUTTI_CHECK(has_gradient_[i] || package.parameters[i].requires_grad || !now.requires_grad(),
                "CompiledNet: ", package.parameters[i].name,
                " requires a gradient, and it was "
                "frozen when it was exported; export it with requires_grad");
  }
  for (std::size_t i = 0; i < package.buffers.size(); ++i) {
    models::detail::check_weight(package.buffers[i], buffer(i), device);
  }
}

TUTTI_INLINE std::vector<at::Tensor> CompiledNet::gather(
    const std::vector<models::detail::Word>& words, const std::vector<at::Tensor>& inputs) {
  using Kind = models::detail::Word::Kind;
  std::vector<at::Tensor> out;
  out.reserve(words.size());
  for (const auto& word : words) {
    out.push_back(word.kind == Kind::parameter ? parameter(word.index)
                  : word.kind == Kind::buffer  ? buffer(word.index)
                  : word.kind == Kind::target  ? inputs.back()
                                               : inputs[word.index]);
  }
  return out;
}

TUTTI_INLINE std::vector<at::Tensor> CompiledNet::evaluate(const std::vector<at::Tensor>& inputs,
                                                           at::Device device) {
  const auto& package = programs_->package;
  const at::NoGradGuard no_grad;
  if (!package.has_eval) {
    TUTTI_CHECK(!package.random && package.mutated == 0, "CompiledNet: '", folder_,
                "' has no program for evaluation, and in training it draws random numbers or "
                "changes buffers; export it without --no-eval");
    auto out = programs_->forward(gather(package.forward.in, inputs), device);
    out.resize(package.outputs.size());
    return out;
  }
  auto out = programs_->eval(gather(package.eval.in, inputs), device);
  const std::size_t mutated = update_buffers(package.eval.out, out);
  out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(mutated));
  return out;
}

TUTTI_INLINE std::vector<at::Tensor> CompiledNet::train_forward(
    const std::vector<at::Tensor>& inputs, at::Device device) {
  const auto& package = programs_->package;
  auto out = programs_->forward(gather(package.forward.in, inputs), device);
  update_buffers(package.forward.out, out);
  const std::size_t end = package.mutated + package.outputs.size();
  std::vector<at::Tensor> outputs;
  for (std::size_t i = package.mutated; i < end; ++i) {
    outputs.push_back(out[i].detach());  // it may be saved as well, and would hold itself
  }
  if (at::GradMode::is_enabled()) {
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(end));
    record(outputs, std::move(out), inputs, device);
  }
  return outputs;
}

TUTTI_INLINE void CompiledNet::record(std::vector<at::Tensor>& outputs,
                                      std::vector<at::Tensor>&& saved,
                                      const std::vector<at::Tensor>& inputs, at::Device device) {
  using Kind = models::detail::Word::Kind;
  const auto& package = programs_->package;
  auto* const node = new models::detail::ExportedBackward;
  const auto owner = ::tutti::detail::own_node(node);
  node->programs = programs_;
  node->parameters = package.parameters.size();
  node->device = device;
  torch::autograd::edge_list edges;
  if (!gradient_edges(edges)) {
    return;
  }
  node->set_next_edges(std::move(edges));
  for (const auto& word : package.backward.in) {
    if (word.kind != Kind::tangent) {
      node->kept.emplace_back(word.kind == Kind::parameter ? parameter(word.index)
                              : word.kind == Kind::buffer  ? buffer(word.index)
                              : word.kind == Kind::input   ? inputs[word.index]
                                                           : saved[word.index],
                              /*is_output=*/false);
    }
  }
  for (const auto& word : package.backward.shares) {
    const at::Tensor& now =
        word.kind == Kind::parameter ? parameter(word.index) : buffer(word.index);
    node->versions.emplace_back(now.detach(), static_cast<std::uint32_t>(now._version()));
  }
  for (at::Tensor& output : outputs) {
    node->outputs.emplace_back(output.sizes().vec(), output.options());
    if (output.is_floating_point()) {
      torch::autograd::set_history(output, owner);
    } else {
      node->add_input_metadata(output);
    }
  }
}

TUTTI_INLINE std::size_t CompiledNet::update_buffers(const std::vector<models::detail::Word>& words,
                                                     const std::vector<at::Tensor>& results) {
  const at::NoGradGuard no_grad;
  std::size_t i = 0;
  for (; i < words.size() && words[i].kind == models::detail::Word::Kind::mutated; ++i) {
    buffer(words[i].index).copy_(results[i]);
  }
  return i;
}

// False: no parameter takes a gradient.
TUTTI_INLINE bool CompiledNet::gradient_edges(torch::autograd::edge_list& edges) {
  bool any = false;
  edges.reserve(parameter_slots_.size());
  for (std::size_t i = 0; i < parameter_slots_.size(); ++i) {
    const at::Tensor& now = parameter(i);
    any = any || now.requires_grad();
    edges.push_back(now.requires_grad() ? torch::autograd::impl::gradient_edge(now)
                                        : torch::autograd::Edge());
  }
  return any;
}

TUTTI_INLINE std::optional<std::pair<std::vector<at::Tensor>, at::Tensor>>
CompiledNet::forward_and_loss(const std::vector<at::Tensor>& inputs, const at::Tensor& targets) {
  const auto& package = programs_->package;
  torch::autograd::edge_list edges;
  if (!package.has_step || !is_training() || !at::GradMode::is_enabled() ||
      !gradient_edges(edges)) {
    return std::nullopt;
  }
  std::vector<models::detail::KnownSize> known;
  const at::Device device = check(inputs, known);
  models::detail::check_training(package.symbols, known);
  if (!models::detail::takes_targets(package.targets, targets, device, package.symbols, known)) {
    return std::nullopt;
  }
  std::vector<at::Tensor> plain = models::detail::contiguous(inputs);
  plain.push_back(targets.contiguous());
  auto out = programs_->step(gather(package.step.in, plain), device);
  const std::size_t first = update_buffers(package.step.out, out);
  const std::size_t end = first + package.outputs.size();
  auto* const node = new models::detail::ExportedStep;
  const auto owner = ::tutti::detail::own_node(node);
  node->gradients.resize(edges.size());
  for (std::size_t i = end + 1; i < out.size(); ++i) {
    if (const std::size_t of = package.step.out[i].index; edges[of].is_valid()) {
      models::detail::take_gradient(node->gradients[of], std::move(out[i]));
    }
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(out[end], owner);
  std::vector<at::Tensor> outputs(out.begin() + static_cast<std::ptrdiff_t>(first),
                                  out.begin() + static_cast<std::ptrdiff_t>(end));
  return std::pair(std::move(outputs), std::move(out[end]));
}

TUTTI_INLINE std::optional<std::pair<at::Tensor, at::Tensor>> CompiledNet::forward_and_loss(
    const at::Tensor& input, const at::Tensor& targets) {
  if (programs_->package.outputs.size() != 1) {
    return std::nullopt;
  }
  auto both = forward_and_loss(std::vector<at::Tensor>{input}, targets);
  return both ? std::optional(std::pair(std::move(both->first[0]), std::move(both->second)))
              : std::nullopt;
}

TUTTI_INLINE Loss next_token_loss(const Outputs& outputs, const Batch& batch) {
  const at::Tensor& logits = outputs.tensor();
  const at::Tensor& labels = batch.targets();
  TUTTI_CHECK_VALUE(logits.dim() == 3 && labels.sizes() == logits.sizes().slice(0, 2),
                    "next_token_loss: the logits are ", logits.sizes(), " and the targets ",
                    labels.sizes(), ", expected [N, T, V] and [N, T]");
  return at::cross_entropy_loss(logits.slice(1, 0, -1).flatten(0, 1), labels.slice(1, 1).flatten());
}

TUTTI_INLINE std::vector<at::Tensor> CompiledModel::inputs_of(const Batch& batch) const {
  const std::vector<std::string>& names = net_->input_names();
  std::vector<at::Tensor> inputs;
  for (const std::string& name : names) {
    inputs.push_back(names.size() > 1 || batch.contains(name) ? batch.at(name) : batch.inputs());
  }
  return inputs;
}

TUTTI_INLINE Outputs CompiledModel::named(const std::vector<at::Tensor>& tensors) const {
  const std::vector<std::string>& labels = net_->output_names();
  Outputs out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out[labels[i]] = tensors[i];
  }
  return out;
}

TUTTI_INLINE Outputs CompiledModel::forward(const Batch& batch) const {
  return named(net_->forward(inputs_of(batch)));
}

TUTTI_INLINE std::optional<std::pair<Outputs, Loss>> CompiledModel::forward_and_loss(
    const Batch& batch) const {
  if (options_.loss) {
    return std::nullopt;
  }
  auto both = net_->forward_and_loss(inputs_of(batch), batch.targets());
  return both ? std::optional(std::pair(named(both->first), Loss(std::move(both->second))))
              : std::nullopt;
}

TUTTI_INLINE Loss CompiledModel::loss(const Outputs& outputs, const Batch& batch) const {
  return options_.loss ? options_.loss(outputs, batch)
                       : Loss(functional::soft_cross_entropy(outputs.tensor(), batch.targets()));
}

}  // namespace tutti
