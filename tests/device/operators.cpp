#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "device/runtime.hpp"

// LibTorch's operators on the device: those of the CPU, on the same memory. What launches no kernel
// of its own (views, allocation, copies to and from the host, reading one number) stays LibTorch's.
namespace {

using torch::jit::Stack;

// The same memory as a tensor of the host, which does not hold it.
at::Tensor on_host(const at::Tensor& x) {
  if (!x.defined() || !x.is_cuda()) {
    return x;
  }
  c10::Storage storage(c10::Storage::use_byte_size_t{}, x.storage().nbytes(),
                       at::DataPtr(stand_in::own_address(x.storage().data()), at::kCPU));
  at::Tensor out(at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), x.dtype()));
  out.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides(), x.storage_offset());
  return out;
}

at::Tensor new_on_device(const at::Tensor& x) {
  return at::detail::empty_strided_generic(
      x.sizes(), x.strides(), c10::cuda::CUDACachingAllocator::get(),
      c10::DispatchKeySet(c10::DispatchKey::CUDA), x.scalar_type());
}

at::Tensor zeros_of(const at::Tensor& x) {
  return x.defined()
             ? at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kCPU)).zero_()
             : x;
}

// What `f` makes of an argument's or result's tensors.
template <class F>
c10::IValue mapped(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    return f(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& each : value.toTensorVector()) {
      out.push_back(f(each));
    }
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      out.push_back(each ? std::optional(f(*each)) : std::nullopt);
    }
    return out;
  }
  return value;
}

// A number of the host is welcome beside tensors of the device, an index only for those that take
// it from there.
void check_devices(const std::string& name, const std::vector<c10::IValue>& arguments) {
  static const std::set<std::string> moves_indices = {"aten::index.Tensor", "aten::index_put_",
                                                      "aten::_index_put_impl_"};
  bool some = false;
  const auto each = [&](auto f) {
    for (const c10::IValue& argument : arguments) {
      mapped(argument, [&](const at::Tensor& x) { return f(x), x; });
    }
  };
  each([&](const at::Tensor& x) { some = some || (x.defined() && x.is_cuda()); });
  if (!some || (moves_indices.contains(name) && arguments[0].toTensor().is_cuda())) {
    return;
  }
  each([&](const at::Tensor& x) {
    TORCH_CHECK(!x.defined() || x.is_cuda() || x.dim() == 0, name, " got a tensor of ", x.sizes(),
                " on ", x.device().str(), " beside others on cuda:0");
  });
}

// Numbers of the device's generator from now on, as a kernel gets them.
at::PhiloxCudaState numbers_of(const c10::IValue& value) {
  const at::Generator& generator =
      value.isNone() ? at::globalContext().defaultGenerator({at::kCUDA, 0}) : value.toGenerator();
  TORCH_CHECK(generator.device().is_cuda(), "got a generator of the CPU, expected one of cuda");
  auto* const impl = generator.get<at::CUDAGeneratorImpl>();
  const std::scoped_lock lock(impl->mutex_);
  return impl->philox_cuda_state(4);
}

// An operator and what it was given, as the CPU's takes it.
struct Call {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::optional<std::size_t> generator;  // the place of that argument
  at::PhiloxCudaState numbers;

  [[nodiscard]] Stack run() const {
    Stack stack(arguments.begin(), arguments.end());
    if (generator) {
      const bool there = numbers.captured_;  // a replay's numbers are on the device
      const auto on_device = [](std::int64_t* p) {
        return static_cast<std::uint64_t>(*static_cast<std::int64_t*>(stand_in::own_address(p)));
      };
      const auto seed = there ? on_device(numbers.seed_.ptr) : numbers.seed_.val;
      const auto offset =
          there ? on_device(numbers.offset_.ptr) + numbers.offset_intragraph_ : numbers.offset_.val;
      stack[*generator] = at::detail::createCPUGenerator(seed * 0x9E3779B97F4A7C15 + offset);
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return stack;
  }

  // The same for sizes and types alone, when no memory holds yet what it will read.
  [[nodiscard]] Call on_zeros() const {
    Call zeros = *this;
    zeros.numbers = at::PhiloxCudaState(1, 1);
    for (c10::IValue& each : zeros.arguments) {
      each = mapped(each, zeros_of);
    }
    return zeros;
  }
};

void copy_results(const std::vector<c10::IValue>& to, const Stack& from) {
  for (std::size_t r = 0; r < to.size(); ++r) {
    std::vector<at::Tensor> made;
    mapped(from[r], [&](const at::Tensor& x) { return made.emplace_back(x); });
    std::size_t i = 0;
    mapped(to[r], [&](const at::Tensor& x) {
      const at::Tensor& source = made[i++];
      return x.defined() ? x.copy_(source) : x;
    });
  }
}

void run_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  const std::vector<c10::IValue> given(stack->end() - static_cast<std::ptrdiff_t>(count),
                                       stack->end());
  stack->resize(stack->size() - count);
  check_devices(c10::toString(op.operator_name()), given);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const bool recording = stand_in::stream_of(stream).capture != nullptr;

  Call call{op, {}, {}, {}};
  std::vector<std::size_t> resized;  // what it is given empty, to make it as large as it needs
  for (std::size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::IValue& value = given[i];
    if (value.isGenerator() || (value.isNone() && argument.name() == "generator")) {
      call.generator = i;
      call.numbers = numbers_of(value);
      call.arguments.push_back(value);
    } else if (value.isDevice()) {
      call.arguments.emplace_back(at::Device(at::kCPU));
    } else if (argument.is_out() && value.isTensor() && value.toTensor().numel() == 0) {
      resized.push_back(i);
      call.arguments.emplace_back(at::empty({0}, value.toTensor().options().device(at::kCPU)));
    } else {
      call.arguments.push_back(mapped(value, on_host));
    }
  }

  const auto& returns = schema.returns();
  Stack results(returns.size());
  Call now = recording ? call.on_zeros() : call;
  if (!recording) {
    const stand_in::Lock lock;
    stand_in::stream_of(stream).finish();
    results = now.run();
  } else if (!resized.empty() || std::any_of(returns.begin(), returns.end(), [](const auto& r) {
               return r.alias_info() == nullptr;
             })) {
    results = now.run();
  }

  for (const std::size_t i : resized) {
    const at::Tensor made = now.arguments[i].toTensor();
    const at::Tensor moved = new_on_device(made);
    call.arguments[i] = on_host(moved);
    if (!recording) {
      on_host(moved).copy_(made);
    }
    auto* const out = given[i].toTensor().unsafeGetTensorImpl();
    out->set_storage_keep_dtype(moved.storage());
    out->set_sizes_and_strides(moved.sizes(), moved.strides(), 0);
  }
  std::vector<c10::IValue> made(returns.size());  // where a replay puts its results
  for (std::size_t r = 0; r < returns.size(); ++r) {
    const c10::AliasInfo* const alias = returns[r].alias_info();
    for (std::size_t i = 0; alias != nullptr && i < count; ++i) {
      const c10::AliasInfo* const own = schema.arguments()[i].alias_info();
      results[r] = own != nullptr && *own == *alias ? given[i] : results[r];
    }
    if (alias == nullptr) {
      results[r] = mapped(c10::IValue(results[r]), [&](const at::Tensor& x) {
        if (!x.defined() || !x.is_cpu()) {
          return x;
        }
        at::Tensor out = new_on_device(x);
        if (!recording) {
          on_host(out).copy_(x);
        }
        return out;
      });
      made[r] = mapped(results[r], on_host);
    }
  }
  if (recording) {
    const stand_in::Lock lock;
    stand_in::give(stream, [call = std::move(call), made] { copy_results(made, call.run()); });
  }
  stack->insert(stack->end(), results.begin(), results.end());
}

template <class... Arguments>
at::Tensor by_host(const char* name, Arguments&&... arguments) {
  Stack stack{std::forward<Arguments>(arguments)...};
  run_on_host(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), &stack);
  return stack.back().toTensor();
}

// LibTorch's own copies to and from the host call the runtime.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (!to.is_cuda() || !from.is_cuda()) {
    return at::native::copy_(to, from, non_blocking);
  }
  by_host("aten::copy_", to, from, non_blocking);
  return to;
}

// A GPU's softmax makes floats of halves in the same kernel.
constexpr char softmax_name[] = "aten::_softmax";
constexpr char log_softmax_name[] = "aten::_log_softmax";
constexpr char softmax_backward_name[] = "aten::_softmax_backward_data";
constexpr char log_softmax_backward_name[] = "aten::_log_softmax_backward_data";
template <const char* name>
at::Tensor softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float) {
  return by_host(name, half_to_float ? x.to(at::kFloat) : x, dim, false);
}
template <const char* name>
at::Tensor softmax_backward(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim,
                            at::ScalarType type) {
  return by_host(name, dy, y, dim, dy.scalar_type()).to(type);
}

// The CPU's draws from the default generator of the host.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& x, double p,
                                                  std::optional<bool> train) {
  if (p == 0 || !train.value_or(true)) {
    return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  }
  const at::Tensor mask = at::empty_like(x).bernoulli_(1 - p);
  return {x.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)), mask.to(at::kBool)};
}

// The CPU has no such operator: its rms_norm is made of others.
std::tuple<at::Tensor, at::Tensor> fused_rms_norm_backward(
    const at::Tensor& dy, const at::Tensor& x, at::IntArrayRef normalized_shape,
    const at::Tensor& rstd, const std::optional<at::Tensor>& weight, std::array<bool, 2> wanted) {
  std::vector<std::int64_t> normalized;
  std::vector<std::int64_t> others;
  const std::int64_t first = x.dim() - static_cast<std::int64_t>(normalized_shape.size());
  for (std::int64_t i = 0; i < x.dim(); ++i) {
    (i < first ? others : normalized).push_back(i);
  }
  const at::Tensor y = x * rstd;
  const bool has_weight = weight && weight->defined();
  const at::Tensor dz = has_weight ? dy * *weight : dy;
  at::Tensor dx = (dz - y * (dz * y).mean(normalized, /*keepdim=*/true)) * rstd;
  at::Tensor dw = dy * y;
  if (!others.empty()) {
    dw = dw.sum(others);
  }
  return {wanted[0] ? dx.to(x.scalar_type()) : at::Tensor(),
          wanted[1] && has_weight ? dw.to(weight->scalar_type()) : at::Tensor()};
}

// Takes the places of LibTorch's operators for CUDA.
class Operators {
 public:
  Operators() {
    at::Context& context = at::globalContext();  // what the CPU has no operators for
    context.setUserEnabledCuDNN(false);
    context.setSDPUseFlash(false);
    context.setSDPUseMemEfficient(false);
    context.setSDPUseCuDNN(false);

    const QuietWarnings quiet{};  // LibTorch says that kernels are overridden
    any_.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name :
         dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
      const auto op = dispatcher.findSchema(name);
      if (op && name.getNamespace() == "aten" && !real().contains(c10::toString(name)) &&
          !gives_view(op->schema())) {
        by_host(c10::toString(name));
      }
    }
    by_host("aten::convolution");  // a GPU's have their own
    by_host("aten::convolution_backward");
    aten_.impl("copy_", &copy);
    aten_.impl("native_dropout", &native_dropout);
    aten_.impl("_fused_rms_norm_backward", &fused_rms_norm_backward);
    aten_.impl("_softmax", &softmax<softmax_name>);
    aten_.impl("_log_softmax", &softmax<log_softmax_name>);
    aten_.impl("_softmax_backward_data", &softmax_backward<softmax_backward_name>);
    aten_.impl("_log_softmax_backward_data", &softmax_backward<log_softmax_backward_name>);
  }

 private:
  struct Quiet final : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  struct QuietWarnings {
    Quiet handler;
    c10::WarningUtils::WarningHandlerGuard guard{&handler};
  };

  // LibTorch's own are used, or those below.
  static const std::set<std::string>& real() {
    static const std::set<std::string> names = {
        "aten::empty.memory_format",
        "aten::empty_strided",
        "aten::resize_",
        "aten::set_",
        "aten::set_.source_Storage",
        "aten::set_.source_Storage_storage_offset",
        "aten::set_.source_Tensor",
        "aten::is_set_to",
        "aten::record_stream",
        "aten::_local_scalar_dense",
        "aten::copy_",
        "aten::native_dropout",
        "aten::_fused_rms_norm_backward",
        softmax_name,
        log_softmax_name,
        softmax_backward_name,
        log_softmax_backward_name,
    };
    return names;
  }

  static bool gives_view(const c10::FunctionSchema& schema) {
    return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& each) {
      return each.alias_info() != nullptr && !each.alias_info()->isWrite();
    });
  }

  // name: with the namespace.
  void by_host(const std::string& name) {
    aten_.impl(name.c_str() + sizeof("aten::") - 1,
               torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }

  torch::Library aten_{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};
  torch::Library any_{torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__};
};

[[maybe_unused]] const Operators& operators = *new Operators;  // as long as the program

}  // namespace
