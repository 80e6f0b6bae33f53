// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <tutti/train/graphs.hpp>

/// Graphs without a GPU: work is done when it is recorded, and once more by every later replay,
/// whose results go to where the first ones are.
namespace fake {

struct Log {
  int runs = 0;
  int records = 0;
  int replays = 0;
};

class Backend final : public tutti::train::GraphBackend {
 public:
  explicit Backend(Log& log) : log_(log) {}

  void run(const std::function<void()>& work) override {
    ++log_.runs;
    work();
  }

  Recorded record(const std::function<Tensors()>& work) override {
    ++log_.records;
    Tensors made = work();
    return {std::make_unique<Again>(log_, work, made), made};
  }

 private:
  class Again final : public Graph {
   public:
    Again(Log& log, std::function<Tensors()> work, Tensors made)
        : log_(log), work_(std::move(work)), made_(std::move(made)) {}

    void replay() override {
      ++log_.replays;
      if (!std::exchange(done_, true)) {
        return;  // recording has done it
      }
      Tensors now;
      {
        const c10::AutoGradMode with_grad(true);
        now = work_();
      }
      for (std::size_t i = 0; i < now.size(); ++i) {
        TORCH_CHECK(now[i].defined() == made_[i].defined(), "result ", i, " came or went");
        if (now[i].defined() && !now[i].is_same(made_[i])) {
          made_[i].copy_(now[i]);
        }
      }
    }

   private:
    Log& log_;
    std::function<Tensors()> work_;
    Tensors made_;
    bool done_ = false;
  };

  Log& log_;
};

inline Log& log() {
  static Log instance;
  return instance;
}

/// While it lives, trainers on the CPU have graphs; log() counts from 0.
class OnCpu {
 public:
  OnCpu() : was_(tutti::train::graph_support()) {
    log() = {};
    tutti::train::graph_support() = {
        .device = at::kCPU, .make = [](at::Device) -> std::unique_ptr<tutti::train::StepGraphs> {
          return std::make_unique<tutti::train::Graphs>(std::make_unique<Backend>(log()));
        }};
  }
  ~OnCpu() { tutti::train::graph_support() = was_; }
  OnCpu(const OnCpu&) = delete;
  OnCpu& operator=(const OnCpu&) = delete;

 private:
  tutti::train::GraphSupport was_;
};

}  // namespace fake
