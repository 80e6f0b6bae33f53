#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>

#include <torch/nn/module.h>

#include "golden/algorithms.hpp"
#include "golden/draws.hpp"
#include "golden/runner.hpp"

namespace golden {
namespace {

namespace functional = tutti::functional;

at::Tensor box_tensor(const functional::Box& box) {
  return at::tensor({box.top, box.left, box.bottom, box.right}, at::kLong);
}

void mixup_batch(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "mixup_batch");
  functional::MixUpOptions options;
  options.alpha = a.number("alpha", options.alpha);
  if (a.has("mixing")) {
    options.mixing = a.number("mixing", 0);
  }
  a.done();
  if (c.has_in("indices")) {
    options.indices = c.in("indices");
  }
  tutti::Rng rng = replay(c);
  const auto got = functional::mixup_batch(c.in("x"), c.in("y"), rng, options);
  verdict.tensor("x", got.input);
  verdict.tensor("y_perm", got.permuted_target);
  verdict.number("mixing", got.mixing);
}

void cutmix_batch(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "cutmix_batch");
  functional::CutMixOptions options;
  options.alpha = a.number("alpha", options.alpha);
  options.uniform_sampling = a.flag("uniform_sampling", options.uniform_sampling);
  const at::Tensor x = c.in("x");
  if (a.has("length")) {
    // In the reference a length makes lambda the area of the box that it describes, so that the box
    // grows as length shrinks; in tutti it is the box's side. The same lambda gives the same box.
    const double length = a.number("length", 0);
    const auto cut = [&](std::int64_t dim) {
      return static_cast<std::int64_t>(length * static_cast<double>(x.size(dim)));
    };
    options.lambda =
        static_cast<double>(cut(2) * cut(3)) / static_cast<double>(x.size(2) * x.size(3));
  }
  if (a.has("lambda")) {
    options.lambda = a.number("lambda", 0);
  }
  if (a.has("bbox")) {
    const Json& box = a.json("bbox");
    options.box = {box[0].integer(), box[1].integer(), box[2].integer(), box[3].integer()};
  }
  a.done();
  if (c.has_in("indices")) {
    options.indices = c.in("indices");
  }
  tutti::Rng rng = replay(c);
  const auto got = functional::cutmix_batch(x, c.in("y"), rng, options);
  verdict.tensor("x", got.input);
  verdict.tensor("y_perm", got.permuted_target);
  verdict.number("adjusted_lambda", got.adjusted_lambda);
  verdict.tensor("bbox", box_tensor(got.box));
}

// Targets with negative indices name no class: tutti leaves such rows empty, the reference gives
// them the uniform part. The other rows are compared with it. Dense rows likewise, by their sums.
at::Tensor as_reference(const Case& c, const at::Tensor& got, double smoothing) {
  const at::Tensor y = c.in("y");
  const double uniform = smoothing / static_cast<double>(got.size(1));
  if (y.dim() == got.dim()) {
    const at::Tensor share = y.to(at::kFloat).sum(1, /*keepdim=*/true).clamp(0, 1);
    return got.add(share.neg().add(1).mul(uniform));
  }
  return y.is_floating_point() ? got
                               : got.add(y.lt(0).unsqueeze(1).to(got.scalar_type()).mul(uniform));
}

void smooth_labels(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "smooth_labels");
  const double smoothing = a.number("smoothing", 0.1);
  a.text("note", "");
  a.done();
  const at::Tensor got = functional::smooth_labels(c.in("logits"), c.in("y"), smoothing);
  verdict.tensor("y", as_reference(c, got, smoothing));
}

// Logits that were computed somewhere else, and their soft cross entropy.
struct GivenLogits : torch::nn::Module {
  tutti::Outputs forward(const tutti::Batch&) { return at::Tensor(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return functional::soft_cross_entropy(outputs.tensor(), batch.targets());
  }
};

// One microbatch as the loop runs it, with one policy. `at_loss` looks at what the loss sees.
// alike: loss and gradient are the reference's.
template <class P, class F>
void run_microbatch(const Case& c, Verdict& verdict, tutti::Engine<P>& engine, tutti::State& state,
                    F&& at_loss, bool alike = true) {
  state.task = std::make_shared<GivenLogits>();
  state.batch = tutti::Batch(c.in("x"), c.in("y"));
  engine.template fire<tutti::BeforeForward>(state);
  const at::Tensor logits = c.in("logits").requires_grad_();
  state.outputs = logits;
  engine.template fire<tutti::AfterForward>(state);
  engine.template fire<tutti::BeforeLoss>(state);
  at_loss();
  state.loss_parts = state.task.loss(state.outputs, state.batch);
  state.loss = state.loss_parts.total();
  engine.template fire<tutti::AfterLoss>(state);
  engine.template fire<tutti::BeforeBackward>(state);
  state.loss.backward();
  if (!alike) {
    verdict.leave_out("loss");
    verdict.leave_out("grad_logits");
    return;
  }
  verdict.tensor("loss", state.loss);
  verdict.tensor("grad_logits", logits.grad());
}

template <class P>
void run_mixing(const Case& c, Verdict& verdict, P policy) {
  policy.rng = replay(c);
  tutti::Engine<P> engine(std::move(policy));
  tutti::State state;
  run_microbatch(c, verdict, engine, state, [&] {
    verdict.tensor("x", state.batch.inputs());
    if (c.has_out("y_mixed")) {
      verdict.tensor("y_mixed", state.batch.targets());
    }
  });
  const P& after = engine.template get<P>();
  verdict.tensor("indices", *after.run.indices);
  if constexpr (requires { after.run.mixing; }) {
    verdict.number("mixing", after.run.mixing);
  } else {
    verdict.number("adjusted_lambda", after.run.adjusted_lambda);
    verdict.tensor("bbox", box_tensor(after.run.box));
  }
}

void mixup(const Case& c, Verdict& verdict) {
  run_mixing(c, verdict, make_mixup(c.params));
}
void cutmix(const Case& c, Verdict& verdict) {
  run_mixing(c, verdict, make_cutmix(c.params));
}

// Some position has less than a whole class.
bool some_ignored(const at::Tensor& logits, const at::Tensor& y) {
  return y.dim() == logits.dim() ? y.to(at::kFloat).sum(1).lt(1 - 1e-4).any().item<bool>()
                                 : y.lt(0).any().item<bool>();
}

void label_smoothing(const Case& c, Verdict& verdict) {
  const tutti::LabelSmoothing policy = make_label_smoothing(c.params);
  const bool alike = !some_ignored(c.in("logits"), c.in("y"));
  if (!alike) {
    verdict.differs(stated::ignored_positions);
  }
  tutti::Engine<tutti::LabelSmoothing> engine(policy);
  tutti::State state;
  run_microbatch(
      c, verdict, engine, state,
      [&] {
        verdict.tensor("y_smoothed", as_reference(c, state.batch.targets(), policy.smoothing));
      },
      alike);
  verdict.tensor("y_after", state.batch.targets());
}

}  // namespace

Handlers batch_handlers() {
  return {{"mixup_batch", mixup_batch},     {"MixUp", mixup},
          {"cutmix_batch", cutmix_batch},   {"CutMix", cutmix},
          {"smooth_labels", smooth_labels}, {"LabelSmoothing", label_smoothing}};
}

}  // namespace golden
