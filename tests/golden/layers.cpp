#include <array>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/nn/blur.hpp>

#include "golden/algorithms.hpp"
#include "golden/runner.hpp"
#include "nn/golden_model.hpp"

namespace golden {
namespace {

// One number, or one a side.
torch::ExpandingArray<2> sides(const Arguments& a, const std::string& key,
                               torch::ExpandingArray<2> otherwise) {
  if (!a.has(key)) {
    return otherwise;
  }
  const Json& value = a.json(key);
  if (!value.is_array()) {
    return value.integer();
  }
  return std::array{value[0].integer(), value[1].integer()};
}

// The filter that the case gives; undefined: the usual one.
at::Tensor filter_of(const Case& c) {
  return c.has_in("filter") ? c.in("filter") : at::Tensor();
}

void blur_2d(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "blur_2d");
  const std::int64_t channels = a.integer("channels", -1);
  const torch::ExpandingArray<2> stride = sides(a, "stride", 1);
  a.done();
  if (c.has_out("filter")) {
    verdict.tensor("filter", tutti::functional::blur_filter());
  }
  verdict.tensor("y", tutti::functional::blur_2d(c.in("x"), channels, stride, filter_of(c)));
}

void blurmax_pool2d(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "BlurMaxPool2d");
  const torch::ExpandingArray<2> kernel = sides(a, "kernel_size", 2);
  const torch::ExpandingArray<2> stride = sides(a, "stride", kernel);
  const torch::ExpandingArray<2> padding = sides(a, "padding", 0);
  const torch::ExpandingArray<2> dilation = sides(a, "dilation", 1);
  const bool ceil_mode = a.flag("ceil_mode", false);
  a.done();
  verdict.tensor("y", tutti::functional::blurmax_pool2d(c.in("x"), kernel, stride, padding,
                                                        dilation, ceil_mode, filter_of(c)));
}

// Names of the model's tensors, its outputs, and all gradients, after `surgery` has changed it.
template <class F>
void check_surgery(const Case& c, Verdict& verdict, Layers layers, F&& surgery) {
  auto model = build_model(c.params["model"], layers);
  load_state(*model, c.ins("state."));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  surgery(*model, optimizer);

  std::vector<std::string> expected;
  for (const Json& key : c.expect["state_keys_after"].array()) {
    expected.push_back(key.string());
  }
  verdict.check(state_keys(*model) == expected, "the state's names differ");
  verdict.check(optimizer.param_groups()[0].params().size() == model->parameters().size(),
                "the optimizer lost track of the parameters");
  const at::Tensor x = c.in("x").requires_grad_();
  const at::Tensor y = model->forward(x);
  verdict.tensor("y", y);
  y.mul(c.in("g")).sum().backward();
  verdict.tensor("grad_x", x.grad());
  for (const auto& parameter : model->named_parameters()) {
    verdict.tensor("grad." + parameter.key(), parameter.value().grad());
  }
  const auto state = state_of(*model);
  for (const auto& [name, tensor] : c.outs("after.")) {
    verdict.tensor("after." + name, state.at(name));
  }
}

// On layers of ours and on plain ones, which surgery reaches inside a Sequential.
void apply_blurpool(const Case& c, Verdict& verdict) {
  for (const auto layers : {Layers::plain, Layers::replaceable}) {
    check_surgery(c, verdict, layers, [&](auto& model, auto& optimizer) {
      tutti::functional::apply_blurpool(model, make_blurpool(c.params["args"]), optimizer);
    });
  }
}

}  // namespace

Handlers layer_handlers() {
  return {
      {"blur_2d", blur_2d}, {"blurmax_pool2d", blurmax_pool2d}, {"apply_blurpool", apply_blurpool}};
}

}  // namespace golden
