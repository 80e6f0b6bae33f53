// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/background.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>

/// Work of some ranks or of all whose failure every rank learns of, so that none waits for another.
namespace tutti::train {

/// What an exception says, without a stack trace.
inline std::string text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

/// Runs `work` on rank 0. Returns on every rank what rank 0 threw, null when it ended well.
template <class F>
std::exception_ptr on_rank_zero(dist::Communicator& world, F&& work) {
  std::string text;
  std::exception_ptr error;
  if (world.rank() == 0) {
    try {
      work();
    } catch (const std::exception& caught) {
      text = "rank 0: " + text_of(caught);
      error = std::current_exception();
    }
  }
  if (world.size() == 1) {
    return error;
  }
  text = world.broadcast_bytes(text);
  if (!error && !text.empty()) {
    error = std::make_exception_ptr(
        c10::Error(c10::SourceLocation{__func__, __FILE__, __LINE__}, text));
  }
  return error;
}

/// Runs `work` on every rank. Returns what it threw on this one, else on the first of the others,
/// null when it ended well on all.
template <class F>
std::exception_ptr error_of_any(dist::Communicator& world, F&& work) {
  std::string text;
  std::exception_ptr error;
  try {
    work();
  } catch (const std::exception& caught) {
    text = text_of(caught);
    error = std::current_exception();
  }
  const std::vector<std::string> texts = world.all_gather_bytes(text);
  for (std::size_t rank = 0; rank < texts.size() && !error; ++rank) {
    if (!texts[rank].empty()) {
      error =
          std::make_exception_ptr(c10::Error(c10::SourceLocation{__func__, __FILE__, __LINE__},
                                             "rank " + std::to_string(rank) + ": " + texts[rank]));
    }
  }
  return error;
}

namespace detail {

// The error of any rank is thrown on all of them, so that none waits for another.
template <class F>
void on_every_rank(dist::Communicator& world, F&& work) {
  if (const auto error = error_of_any(world, std::forward<F>(work))) {
    std::rethrow_exception(error);
  }
}

}  // namespace detail

/// Runs `work` on the ranks where `here` is set, while the others wait for as long as it takes; a
/// collective. Returns what it threw as error_of_any() does.
template <class F>
std::exception_ptr error_while_others_wait(dist::Communicator& world, bool here, F&& work) {
  if (world.size() == 1) {
    try {
      if (here) {
        work();
      }
    } catch (const std::exception&) {
      return std::current_exception();
    }
    return nullptr;
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = !here;
  const auto end = [&] {
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  };
  checkpoint::Background thread;
  if (here) {
    thread.run([&] {
      try {
        work();
      } catch (...) {
        end();
        throw;
      }
      end();
    });
  }
  // Many short waits, since a collective has a time limit.
  const auto runs_for_a_moment = [&] {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return ended; });
  };
  while (world.all_reduce_value(std::int64_t{runs_for_a_moment()}, dist::ReduceOp::maximum) != 0) {
  }
  return error_of_any(world, [&] {
    if (const auto error = thread.finish()) {
      std::rethrow_exception(error);
    }
  });
}

/// The same; what `work` throws is thrown on every rank.
template <class F>
void run_while_others_wait(dist::Communicator& world, bool here, F&& work) {
  if (const auto error = error_while_others_wait(world, here, std::forward<F>(work))) {
    std::rethrow_exception(error);
  }
}

}  // namespace tutti::train
