#include "together/text.hpp"

#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>

#include <tutti/algorithms/low_precision_groupnorm.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/nn/sequential.hpp>

#include "device/check.hpp"
#include "device/run.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using device_tests::SpareMemory;

using Pack = together::Pack<ALiBi, EMA, Factorize, GatedLinearUnits, GradientClipping, GyroDropout,
                            LayerFreezing, LowPrecisionLayerNorm, SAM, SeqLengthWarmup>;

auto model(std::size_t /*algorithm*/) {
  return together::bert();
}

}  // namespace

TEST_CASE("algorithms for text train on a device as on the host", "[device]") {
  device_tests::check_same_as_host<Pack>(model, together::text_options(2, 3, 0));
}

TEST_CASE("algorithms for text train on a device under autocast", "[device]") {
  device_tests::check_amp<Pack>(model, together::text_options(1, 3, 4));
}

TEST_CASE("algorithms for text resume on a device bit for bit", "[device][resume]") {
  together::check_resume<Pack>(model, device_tests::on_device(together::text_options(2, 3, 0)),
                               "ep1-ba4");
}

TEST_CASE("a warm-up of lengths reserves memory for as many examples as fit", "[device]") {
  const auto fit = [](const CountOrAuto& microbatch) {
    TrainerOptions options = device_tests::on_device(together::text_options(1, 2, 0));
    std::vector<Batch> batches = together::sentences(2);
    for (Batch& batch : batches) {  // of 512 examples, a MiB for each activation
      for (auto& [name, tensor] : batch) {
        tensor = tensor.repeat({64, 1});
      }
    }
    options.train = batches;
    options.device_train_microbatch_size = microbatch;
    const auto net = together::bert();
    Trainer trainer{net, options, SeqLengthWarmup{.min_seq_length = 8, .max_seq_length = 16}};
    const SpareMemory limit(std::size_t{16} << 20);
    trainer.fit();
    CHECK(trainer.state().timestamp.batch == 2);
    CHECK(net->is_training());
    return trainer.state().device_train_microbatch_size;
  };
  CHECK_THROWS_AS(fit(512), c10::OutOfMemoryError);
  CHECK(fit("auto") < 512);
}

TEST_CASE("low-precision norms compute in the autocast type of a device", "[device]") {
  for (const at::ScalarType low : {at::kBFloat16, at::kHalf}) {
    nn::Sequential norms(nn::LayerNorm(torch::nn::LayerNormOptions({4, 4})), nn::GroupNorm(2, 6));
    norms->to(at::kCUDA);
    const Precision precision = low == at::kHalf ? Precision::amp_fp16 : Precision::amp_bf16;
    functional::apply_low_precision_layernorm(*norms, precision);
    functional::apply_low_precision_groupnorm(*norms, precision);
    const at::Tensor x = at::randn({3, 6, 4, 4}, at::kCUDA);
    std::vector<at::Tensor> p;  // of both norms, weight and bias
    for (const at::Tensor& parameter : norms->parameters()) {
      p.push_back(parameter.detach().to(low));
    }
    const Autocast on(at::kCUDA, low);
    const at::Tensor y = norms->forward(x);
    CHECK(y.scalar_type() == low);
    CHECK(at::layer_norm(x, {4, 4}).scalar_type() == at::kFloat);  // LibTorch's own choice
    const c10::impl::ExcludeDispatchKeyGuard plain(at::autocast_dispatch_keyset);
    const at::Tensor rows = at::layer_norm(x.to(low), {4, 4}, p[0], p[1]);
    CHECK(y.equal(at::group_norm(rows, 2, p[2], p[3])));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
