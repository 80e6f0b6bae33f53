// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/fused/detail/cuda.hpp>
#include <tutti/fused/detail/order.hpp>
#include <tutti/fused/detail/row_writer.hpp>
#include <tutti/fused/detail/source.hpp>
#include <tutti/fused/detail/tables.hpp>
#include <tutti/fused/pixels.hpp>

/// Several transforms of a batch of images in one pass over its pixels.
namespace tutti::fused {

/// Of which examples' targets each example's target is made.
struct MixedTargets {
  at::Tensor rows;              ///< int64 [N, P] on the CPU: examples of the batch; P is 1, 2 or 4
  std::vector<double> weights;  ///< [P], the weight of each, the same for all examples; sum 1
};

/// All that the stages of a Pass drew for one batch. May be run any number of times.
///
/// Nodes: the stages' pixel expressions, in order.
template <class... Nodes>
class Plan {
  using Order = detail::Order<Nodes...>;
  static constexpr std::size_t stages = sizeof...(Nodes);

 public:
  /// source: the batch as it is. nodes: in source's coordinates, each as its stage saw the batch.
  Plan(const Frame& source, Nodes... nodes)
      : source_(source), frame_(source), geometry_(source), nodes_(std::move(nodes)...) {
    each(nodes_, [this](auto& node) { this->settle(node); });
  }

  /// The batch after all stages.
  [[nodiscard]] const Frame& frame() const { return frame_; }

  /// The images after all stages: fp32 [N, C, H', W'].
  ///
  /// images: uint8 [N, C, H, W] of the planned sizes, with any strides: for [N, H, W, C] give
  /// images.permute({0, 3, 1, 2}). On the CPU, or on a CUDA device in a program built with
  /// TUTTI_WITH_CUDA. format: of what is returned. type: likewise; bf16 and fp16 are what fp32 is
  /// rounded to in the end.
  /// Returns, on the images' device, what the stages one after the other give on the CPU, bit for
  /// bit. Images are done several at a time; on CUDA by one kernel on the current stream, compiled
  /// when it is first needed.
  /// Throws c10::Error (ValueError) for other images; c10::Error when the kernel cannot be
  /// compiled.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& images,
                                      at::MemoryFormat format = at::MemoryFormat::Contiguous,
                                      at::ScalarType type = at::kFloat) const {
    const at::Tensor out = images.is_cuda()
                               ? room_beside(images, format, type)
                               : at::Tensor(at::detail::empty_cpu(
                                     {frame_.images, frame_.channels, frame_.height, frame_.width},
                                     type, /*pin_memory=*/false, format));
    run(images, out);
    return out;
  }

  /// The same into a tensor that is there already: fp32, bf16 or fp16 [N, C, H', W'], contiguous in
  /// either memory format, on the images' device.
  void run(const at::Tensor& images, const at::Tensor& out) const {
    expect_tensors(images, out);
    if constexpr (detail::has_kernels) {
      if (images.is_cuda()) {
        if (out.numel() > 0) {
          detail::run_kernel(cuda_source(), tables(), images, frame_, out);
        }
        return;
      }
    }
    switch (out.scalar_type()) {
      case at::kBFloat16:
        return run_as<at::BFloat16>(images, out);
      case at::kHalf:
        return run_as<at::Half>(images, out);
      default:
        run_as<float>(images, out);
    }
  }

  /// The CUDA kernel of this pass, put together by the compiler. It reads tables().
  [[nodiscard]] static constexpr std::string_view cuda_source() { return detail::source<Nodes...>; }

  /// What the stages drew, as the kernel reads it.
  [[nodiscard]] detail::Tables tables() const { return {geometry_, frame_, nodes_}; }

  /// What becomes of the targets, for functional::mixed_cross_entropy.
  [[nodiscard]] MixedTargets targets() const {
    detail::Pairs pairs{.rows = {}, .weights = {1}};
    for (std::int64_t n = 0; n < frame_.images; ++n) {
      pairs.rows.push_back(n);
    }
    each(nodes_, [&](const auto& node) {
      using Node = std::remove_cvref_t<decltype(node)>;
      if constexpr (detail::Mixes<Node>) {
        if (node.indices.defined()) {
          pairs = detail::blend(pairs, node.indices, detail::share_of_own(node));
        }
      }
    });
    at::Tensor rows(at::detail::empty_cpu({frame_.images, std::ssize(pairs.weights)}, at::kLong,
                                          /*pin_memory=*/false, std::nullopt));
    std::copy(pairs.rows.begin(), pairs.rows.end(), rows.mutable_data_ptr<std::int64_t>());
    return {rows, std::move(pairs.weights)};
  }

 private:
  template <class Tuple, class F>
  static void each(Tuple& nodes, const F& f) {
    std::apply([&](auto&... node) { (f(node), ...); }, nodes);
  }

  // Takes a stage into the geometry; what earlier ones said in their coordinates follows it.
  template <class Node>
  void settle(Node& node) {
    frame_ = after(frame_, node);
    if constexpr (std::is_same_v<Node, Take>) {
      bool before = true;
      each(nodes_, [&](auto& other) {
        before = before && static_cast<const void*>(&other) != static_cast<const void*>(&node);
        if (before) {
          move(other, node);
        }
      });
    }
    if constexpr (requires { geometry_.add(node); }) {
      geometry_.add(node);
    }
  }

  template <class Node>
  static void move(Node& node, const Take& take) {
    if constexpr (std::is_same_v<Node, Holes>) {
      for (auto& boxes : node.boxes) {
        for (Box& box : boxes) {
          box = take(box);
        }
      }
    } else if constexpr (std::is_same_v<Node, Paste>) {
      node.box = take(node.box);
    }
  }

  // The segments that a part of a row is made of after the first K stages.
  template <std::size_t K, class Sink>
  void cut(const detail::Segment& p, const Sink& sink) const {
    if constexpr (K == 0) {
      sink(p.first, p.last, detail::Blend{.own = {.image = p.image}});
    } else {
      constexpr auto fill = K - 1 < Order::scale ? detail::Fill::black : detail::Fill::zero;
      detail::cut(
          std::get<K - 1>(nodes_), fill,
          [this](const detail::Segment& inner, const auto& s) {
            this->template cut<K - 1>(inner, s);
          },
          p, sink);
    }
  }

  [[nodiscard]] const Scale& scale() const { return std::get<Scale>(nodes_); }
  [[nodiscard]] double mixing() const {
    if constexpr (detail::count<Mix, Nodes...> == 1) {
      return std::get<Mix>(nodes_).mixing;
    } else {
      return 0;
    }
  }

  template <class T>
  void run_as(const at::Tensor& images, const at::Tensor& out) const {
    if (out.numel() == 0) {
      return;
    }
    const detail::ChannelTables tables(scale(), frame_.channels, mixing());
    constexpr std::int64_t parts = 4;  // of a thread's share, so that the last one is short
    const std::int64_t chunk =
        std::max<std::int64_t>(1, frame_.images / (parts * at::get_num_threads()));
    const std::int64_t chunks = (frame_.images + chunk - 1) / chunk;
    tutti::detail::parallel_each(chunks, [&](std::int64_t i) {
      detail::RowWriter<T> writer(images, out, geometry_, tables);
      for (std::int64_t n = i * chunk; n < std::min(frame_.images, (i + 1) * chunk); ++n) {
        for (std::int64_t row = 0; row < frame_.height; ++row) {
          cut<stages>({n, row, 0, frame_.width},
                      [&](std::int64_t first, std::int64_t last, const detail::Blend& terms) {
                        writer.add(row, first, last, terms);
                      });
        }
        writer.write(n);
      }
    });
  }

  // For the output, on the device of the images.
  [[nodiscard]] at::Tensor room_beside(const at::Tensor& images, at::MemoryFormat format,
                                       at::ScalarType type) const {
    const auto [n, channels, height, width, elapsed] = frame_;
    const std::int64_t plane = height * width;
    return format == at::MemoryFormat::ChannelsLast
               ? images.new_empty_strided({n, channels, height, width},
                                          {channels * plane, 1, width * channels, channels}, type)
               : images.new_empty({n, channels, height, width}, type);
  }

  void expect_tensors(const at::Tensor& images, const at::Tensor& out) const {
    const char* where = detail::has_kernels ? "the CPU or CUDA" : "the CPU";
    const bool known = images.is_cpu() || (detail::has_kernels && images.is_cuda());
    const auto fits = [&](const at::Tensor& x, const Frame& frame) {
      return x.dim() == 4 && known && x.device() == images.device() && x.size(0) == frame.images &&
             x.size(1) == frame.channels && x.size(2) == frame.height && x.size(3) == frame.width;
    };
    TUTTI_CHECK_VALUE(images.scalar_type() == at::kByte && fits(images, source_),
                      "fused::Plan: the images are ", images.scalar_type(), images.sizes(), " on ",
                      images.device(), ", planned were uint8 [", source_.images, ", ",
                      source_.channels, ", ", source_.height, ", ", source_.width, "] on ", where);
    TUTTI_CHECK_VALUE(
        (out.scalar_type() == at::kFloat || out.scalar_type() == at::kBFloat16 ||
         out.scalar_type() == at::kHalf) &&
            fits(out, frame_) &&
            (out.is_contiguous() || out.is_contiguous(at::MemoryFormat::ChannelsLast)),
        "fused::Plan: the output is ", out.scalar_type(), out.sizes(), " on ", out.device(),
        ", expected contiguous fp32, bf16 or fp16 [", frame_.images, ", ", frame_.channels, ", ",
        frame_.height, ", ", frame_.width, "] on the images' device");
  }

  Frame source_;
  Frame frame_;
  detail::Geometry geometry_;
  std::tuple<Nodes...> nodes_;
};

/// Transforms of a batch of raw images, done in one pass over its pixels.
///
///     namespace fused = tutti::fused;
///     fused::Pass pass{fused::Normalize{mean, std}, tutti::MixUp{}, tutti::CutOut{}};
///     const auto plan = pass.plan(images);  // all draws, in the order of the stages
///     const at::Tensor x = plan(images);    // uint8 [N, C, H, W] to fp32
///     const auto [rows, weights] = plan.targets();
///
/// Stages are in the order in which they would run one after the other, and draw from their own
/// streams what they would draw then. RandomCrop and RandomFlip come first; one Normalize comes
/// before MixUp; all else is free. What cannot be fused does not compile.
template <Fusible... Stages>
class Pass {
  static constexpr detail::Order<PixelsOf<Stages>...> order{};

 public:
  Pass()
    requires(std::is_default_constructible_v<Stages> && ...)
  = default;

  /// Throws c10::ValueError when a hyperparameter of a stage is out of range.
  explicit Pass(Stages... stages)
    requires(sizeof...(Stages) > 0)
      : stages_(std::move(stages)...) {
    each([](auto& stage) {
      if constexpr (requires { stage.validate(); }) {
        stage.validate();
      }
    });
  }

  /// Begins the streams of all stages that draw, as a run with this seed does.
  void seed(std::uint64_t seed) {
    each([&](auto& stage) {
      if (Rng* rng = rng_of(stage)) {
        *rng = Rng::for_policy(seed, stage.name);
      }
    });
  }

  /// One of the stages.
  template <class Stage>
  [[nodiscard]] Stage& get() {
    return std::get<Stage>(stages_);
  }

  /// Draws all that the stages need for a batch.
  ///
  /// images: [N, C, H, W], read for its sizes only. elapsed: part of the run that is done, in [0,
  /// 1], by which ProgressiveResizing grows.
  /// Throws c10::Error (ValueError) when images has not four dimensions, and what the stages throw.
  [[nodiscard]] auto plan(const at::Tensor& images, double elapsed = 0) {
    TUTTI_CHECK_VALUE(images.dim() == 4, "fused::Pass: the images are ", images.sizes(),
                      ", expected [N, C, H, W]");
    const Frame source{images.size(0), images.size(1), images.size(2), images.size(3), elapsed};
    Frame frame = source;
    // Braces, so that the stages draw from first to last.
    return std::apply(
        [&](auto&... stage) {
          std::tuple<PixelsOf<Stages>...> nodes{draw(stage, frame)...};
          return std::apply(
              [&](auto&... node) { return Plan<PixelsOf<Stages>...>(source, std::move(node)...); },
              nodes);
        },
        stages_);
  }

  /// The stages and what each does to a pixel, a line each.
  [[nodiscard]] static std::string describe() {
    std::string text = "x(n, c, i, j) = images[n, c, i, j]\n";
    ((text.append(Stages::name)
          .append(": x(n, c, i, j) = ")
          .append(PixelsOf<Stages>::formula)
          .append("\n")),
     ...);
    return text;
  }

 private:
  // What a stage draws, given the batch as the stages before leave it.
  template <class Stage>
  static auto draw(Stage& stage, Frame& frame) {
    auto node = stage.pixels(frame);
    frame = after(frame, node);
    return node;
  }

  template <class F>
  void each(const F& f) {
    std::apply([&](auto&... stage) { (f(stage), ...); }, stages_);
  }

  std::tuple<Stages...> stages_;
};

}  // namespace tutti::fused
