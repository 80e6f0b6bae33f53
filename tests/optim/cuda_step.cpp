#include <tutti/optim/detail/cuda_step.hpp>

#include <ATen/ATen.h>
#include <torch/cuda.h>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#if TUTTI_WITH_CUDA
#include <cuda_runtime_api.h>

#include <tutti/core/detail/nvrtc.hpp>
#endif

namespace UNITY_BUILD_UNIQUE_ID {

// The kernel gives the very bits of the loops for the CPU in whole blocks of 8.

#if TUTTI_WITH_CUDA

namespace {

using Catch::Matchers::ContainsSubstring;

std::string compile(const std::string& type, const char* architecture) {
  return tutti::detail::compile(
      std::string(tutti::optim::detail::step_text), "step.cu",
      tutti::detail::kernel_options(architecture, {"TUTTI_NUMBERS=" + type}));
}

}  // namespace

TEST_CASE("NVRTC compiles the optimizers' kernel for every rule and architecture",
          "[optim][cuda]") {
  for (const char* type : {"Adam", "Sgd"}) {
    INFO(type);
    const std::string ptx = compile(type, "compute_80");
    CHECK_THAT(ptx, ContainsSubstring(".visible .entry tutti_optimizer_step("));
    CHECK_THAT(ptx, ContainsSubstring("fma.rn.f32") && ContainsSubstring("ld.global.v4.f32") &&
                        ContainsSubstring("st.global.v4.f32"));
    CHECK_THAT(ptx, !ContainsSubstring(".ftz") && !ContainsSubstring(".approx") &&
                        !ContainsSubstring(".full") && !ContainsSubstring("__local_depot"));
    for (const char* architecture : {"sm_80", "sm_90"}) {
      const std::string code = compile(type, architecture);
      CHECK(code.starts_with("\177ELF"));
      CHECK_THAT(code, ContainsSubstring("tutti_optimizer_step"));
    }
  }
  CHECK_THAT(compile("Adam", "compute_80"), ContainsSubstring("sqrt.rn.f32"));
}

#else

TEST_CASE("NVRTC compiles the optimizers' kernel", "[optim][cuda][gpu]") {
  tutti_test::skip("this program was built without TUTTI_WITH_CUDA, so there is no NVRTC");
}

#endif

namespace {

using Tensors = std::vector<at::Tensor>;

// What stands in the way of a test on a GPU; empty: nothing.
std::string missing() {
  if (!tutti::detail::has_cuda_kernels) {
    return "this program was built without TUTTI_WITH_CUDA";
  }
  if (!tutti::detail::has_avx2()) {
    return "this processor has no AVX2, so there is nothing to compare with";
  }
  return torch::cuda::is_available() ? "" : "there is no CUDA device";
}

// Around what a thread and what a block of threads takes; more of them than one launch does.
const std::vector<std::int64_t> sizes = [] {
  std::vector<std::int64_t> out{0, 1, 3, 4, 5, 8, 4095, 4096, 4097, 9000};
  out.resize(70, 6);
  return out;
}();

// Parameters, on the host of whole blocks with zeros at the end, and averages of all but the last.
struct Set {
  explicit Set(at::Device where) : device(where) {
    at::manual_seed(2);
    for (const std::int64_t n : sizes) {
      parameters.push_back(at_home(at::randn({n})).requires_grad_());
      averages.push_back(at_home(at::randn({n})));
    }
    averages.pop_back();
    weights.assign(parameters.begin(), parameters.end() - 1);
    done.assign(weights.size(), 0);
  }

  // On the device one in three lies at an address that is no multiple of 16 bytes.
  at::Tensor at_home(const at::Tensor& x) {
    const std::int64_t n = x.numel();
    if (device.is_cpu()) {
      return at::cat({x, at::zeros({(n + 7) / 8 * 8 - n})});
    }
    const std::int64_t offset = ++made % 3 == 0 ? 1 : 0;
    const at::Tensor out = at::empty({n + offset}, device).slice(0, offset);
    return out.copy_(x);
  }

  void draw_gradients(int step) {
    at::manual_seed(20 + static_cast<std::uint64_t>(step));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      at::Tensor gradient = at::randn({sizes[i]});
      if (step == 2 && i == 6) {
        gradient[17] = NAN;
      }
      parameters[i].mutable_grad() = at_home(gradient);
    }
  }

  tutti::optim::FusedStep fused_step(bool scale_on_device) {
    done.assign(done.size(), 0);
    tutti::optim::FusedStep out{.limit = 0.4,
                                .averaging = {.averages = &averages,
                                              .weights = &weights,
                                              .version = 1,
                                              .smoothing = 0.9,
                                              .done = &done}};
    if (scale_on_device && device.is_cuda()) {
      out.device_scale = at::full({}, 0.3F, at::TensorOptions(device));
    } else {
      out.scale = 0.3F;
    }
    return out;
  }

  at::Device device;
  int made = 0;
  Tensors parameters, averages, weights;
  std::vector<char> done;
};

// Whether the bits of a NaN are those of the host: the stand-in (tests/device) computes there.
bool same_nan() {
#if TUTTI_WITH_CUDA
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess &&
         std::string_view(properties.name) == "NVIDIA stand-in";
#else
  return true;
#endif
}

at::Tensor bits_of(const at::Tensor& x) {
  return (same_nan() ? x : x.masked_fill(x.isnan(), NAN)).contiguous().view(at::kInt);
}

bool same_bits(const Tensors& there, const Tensors& here) {
  for (std::size_t i = 0; i < there.size(); ++i) {
    const at::Tensor got = bits_of(there[i].detach().cpu());
    if (!got.equal(bits_of(here[i].detach().slice(0, 0, there[i].numel())))) {
      return false;
    }
  }
  return true;
}

template <class Hyper>
void compare(const Hyper& hyper) {
  INFO(tutti::optim::Rule<Hyper>::name);
  Set here(at::kCPU);
  Set there(at::Device(at::kCUDA, 0));
  const auto on_host = hyper.build(here.parameters);
  const auto on_device = hyper.build(there.parameters);
  for (int step = 0; step < 4; ++step) {
    INFO("step " << step);
    here.draw_gradients(step);
    there.draw_gradients(step);
    on_host->step(here.fused_step(false));
    on_device->step(there.fused_step(/*scale_on_device=*/step % 2 == 1));
    CHECK(there.done == std::vector<char>(sizes.size() - 1, 1));
    CHECK(same_bits(there.parameters, here.parameters));
    CHECK(same_bits(there.averages, here.averages));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CHECK(same_bits({there.parameters[i].grad()}, {here.parameters[i].grad()}));
    }
  }
}

}  // namespace

TEST_CASE("a fused step on a GPU gives the bits of the loops on the CPU",
          "[optim][fused_step][cuda][law][gpu]") {
  if (const std::string why = missing(); !why.empty()) {
    return tutti_test::skip(why);
  }
  using namespace tutti;
  compare(Adam{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true, .maximize = true});
  compare(AdamW{.lr = 0.01, .betas = {0.3, 0.9}, .weight_decay = 0.1});
  compare(DecoupledAdamW{.lr = 0.01, .weight_decay = 1e-4});
  compare(DecoupledAdamW{.lr = 0.0, .weight_decay = 1e-4});
  compare(SGD{.lr = 0.01});
  compare(
      SGD{.lr = 0.01, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1, .maximize = true});
  compare(SGD{.lr = 0.01, .momentum = 0.9, .nesterov = true});
  compare(DecoupledSGDW{.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4});
}

TEST_CASE("a fused step on a GPU leaves gradients that nobody asks for as they were",
          "[optim][fused_step][cuda][gpu]") {
  if (const std::string why = missing(); !why.empty()) {
    return tutti_test::skip(why);
  }
  Set set(at::Device(at::kCUDA, 0));
  const auto optimizer = tutti::AdamW{}.build(set.parameters);
  set.draw_gradients(0);
  const at::Tensor before = set.parameters[9].grad().clone();
  tutti::optim::FusedStep fused = set.fused_step(true);
  fused.keep_gradients = false;
  optimizer->step(fused);
  CHECK(set.parameters[9].grad().equal(before));
}

TEST_CASE("a fused step on a GPU clips ahead what it has no kernel for",
          "[optim][fused_step][cuda][law][gpu]") {
  if (const std::string why = missing(); !why.empty()) {
    return tutti_test::skip(why);
  }
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
    INFO(type);
    const auto options = at::TensorOptions(at::kCUDA).dtype(type);
    const auto make = [&] { return at::ones({8}, options).requires_grad_(); };
    const at::Tensor ours = make();
    const at::Tensor theirs = make();
    ours.mutable_grad() = at::arange(8, options);
    theirs.mutable_grad() = at::arange(8, options).mul_(0.5).clamp_max_(2);
    const auto norm = type == at::kDouble ? at::kDouble : at::kFloat;  // as clipping has it
    tutti::SGD{.lr = 0.1}.build({ours})->step(
        {.device_scale = at::full({}, 0.5, options.dtype(norm)), .limit = 2});
    tutti::SGD{.lr = 0.1}.build({theirs})->step();
    CHECK(ours.equal(theirs));
    CHECK(ours.grad().equal(theirs.grad()));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
