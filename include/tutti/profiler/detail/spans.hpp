// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/profiler/detail/recording.hpp>

namespace tutti::detail {

// The spans of the training loop that have begun, the outermost first.
//
// In every file each begin has its end, and they nest: what is closed with others inside it is
// closed from the inside out, and a file's end closes all. Those that began while nothing was
// recorded wait for the next recording; so do those of a file that ends, from there on.
class Spans {
 public:
  struct Span {
    std::string name;
    std::string_view category;
    bool survives = false;  // goes on when a span around it ends before it
    std::string line{};     // its begin, while it waits
  };

  // recorded: now, else with the next recording.
  void begin(Recording& to, Span span, bool recorded) {
    std::string line = to.line('B', span.name, span.category);
    if (recorded) {
      to.add(std::move(line));
      open_.push_back(std::move(span));
    } else {
      span.line = std::move(line);
      waiting_.push_back(std::move(span));
    }
  }

  // Does nothing when there is no such span.
  void end(Recording& to, std::string_view name) {
    std::erase_if(waiting_, [&](const Span& span) { return span.name == name; });
    std::size_t at = open_.size();
    while (at > 0 && open_[at - 1].name != name) {
      --at;
    }
    if (at == 0) {
      return;
    }
    std::vector<Span> inside(open_.begin() + static_cast<std::ptrdiff_t>(at), open_.end());
    close_from(to, at - 1);
    for (Span& span : inside) {
      if (span.survives) {
        begin(to, std::move(span), /*recorded=*/true);
      }
    }
  }

  // A recording begins: so do those that wait.
  void resume(Recording& to) {
    for (Span& span : std::exchange(waiting_, {})) {
      to.add(std::exchange(span.line, {}));
      open_.push_back(std::move(span));
    }
  }

  // A recording ends; what is open waits for the next.
  void suspend(Recording& to) {
    std::vector<Span> open = open_;
    close_from(to, 0);
    for (Span& span : open) {
      begin(to, std::move(span), /*recorded=*/false);
    }
  }

 private:
  void close_from(Recording& to, std::size_t first) {
    while (open_.size() > first) {
      to.add('E', open_.back().name, open_.back().category);
      open_.pop_back();
    }
  }

  std::vector<Span> open_;
  std::vector<Span> waiting_;
};

}  // namespace tutti::detail
