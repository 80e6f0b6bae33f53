// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/profiler/detail/recording.hpp>

namespace tutti {

/// When and how a marker records.
struct MarkerOptions {
  /// During which actions.
  std::vector<ProfilerAction> actions{ProfilerAction::warmup, ProfilerAction::active,
                                      ProfilerAction::active_and_save};
  bool record_instant_on_start = false;   ///< an instant as well when a span begins
  bool record_instant_on_finish = false;  ///< likewise when it ends
  std::vector<std::string> categories{};  ///< a viewer can filter by them
};

/// Puts something of one's own into a profiler's trace: spans, instants, counters.
///
///     auto marker = trainer.get<tutti::Profiler>().marker("tokenize");
///     { const auto span = marker.scope();  tokenize(); }
///
/// It is used by one thread at a time, any thread; it may be kept as long as one likes. A span that
/// was recorded when it began is recorded when it ends.
class Marker {
 public:
  Marker(std::shared_ptr<detail::Recording> recording, std::string name, MarkerOptions options)
      : recording_(std::move(recording)), name_(std::move(name)), options_(std::move(options)) {
    for (const std::string& category : options_.categories) {
      categories_ += (categories_.empty() ? "" : ",") + category;
    }
  }

  /// Begins a span. Throws c10::Error when it has begun already.
  void start() {
    TUTTI_CHECK(!started_, "Marker: \"", name_, "\" is started twice; finish() it first");
    started_ = true;
    recorded_ = records();
    if (recorded_) {
      recording_->add('B', name_, categories_);
      if (options_.record_instant_on_start) {
        recording_->add('i', name_, categories_);
      }
    }
  }

  /// Ends the span. Throws c10::Error when none has begun.
  void finish() {
    TUTTI_CHECK(started_, "Marker: \"", name_, "\" is finished, but was not started");
    started_ = false;
    if (recorded_) {
      recording_->add('E', name_, categories_);
      if (options_.record_instant_on_finish) {
        recording_->add('i', name_, categories_);
      }
    }
  }

  /// A point in time.
  void instant() const {
    if (records()) {
      recording_->add('i', name_, categories_);
    }
  }

  /// Numbers, drawn over time.
  void counter(std::initializer_list<std::pair<std::string_view, double>> values) const {
    if (records()) {
      std::string text;
      for (const auto& [name, value] : values) {
        if (std::isfinite(value)) {  // JSON has no others
          text += (text.empty() ? "" : ", ") + detail::json_quoted(name) + ": " +
                  detail::json_number(value);
        }
      }
      recording_->add(recording_->line_with('C', name_, categories_, "{" + text + "}"));
    }
  }

  /// A span from here to the end of the returned object's life.
  [[nodiscard]] auto scope() {
    struct Scope {
      explicit Scope(Marker& of) : marker(of) { marker.start(); }
      Scope(const Scope&) = delete;
      Scope& operator=(const Scope&) = delete;
      ~Scope() { marker.finish(); }
      Marker& marker;
    };
    return Scope(*this);
  }

 private:
  [[nodiscard]] bool records() const {
    const ProfilerAction action = recording_->action;
    return std::find(options_.actions.begin(), options_.actions.end(), action) !=
           options_.actions.end();
  }

  std::shared_ptr<detail::Recording> recording_;
  std::string name_;
  MarkerOptions options_;
  std::string categories_;
  bool started_ = false;
  bool recorded_ = false;
};

}  // namespace tutti
