// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/find_lr.hpp>

namespace tutti::train {

TUTTI_INLINE void check_find_lr(const FindLrOptions& options, const State& state, const Run& run,
                                bool whole) {
  TUTTI_CHECK_VALUE(
      options.min_lr > 0 && options.max_lr > options.min_lr && std::isfinite(options.max_lr),
      "find_lr: the rates go from min_lr ", options.min_lr, " to max_lr ", options.max_lr,
      ", expected more than 0, and max_lr above min_lr");
  TUTTI_CHECK_VALUE(options.num_steps >= 3, "find_lr: num_steps is ", options.num_steps,
                    ", expected 3 or more");
  TUTTI_CHECK_VALUE(options.smoothing >= 0 && options.smoothing < 1, "find_lr: smoothing is ",
                    options.smoothing, ", expected 0 or more, below 1");
  TUTTI_CHECK_VALUE(options.divergence == 0 || options.divergence > 1, "find_lr: divergence is ",
                    options.divergence, ", expected more than 1, or 0 for never");
  TUTTI_CHECK_VALUE(options.skip_begin >= 0 && options.skip_end >= 0, "find_lr: skip_begin is ",
                    options.skip_begin, " and skip_end ", options.skip_end,
                    ", expected 0 or more each");
  TUTTI_CHECK(run.train, "find_lr: there is no training data; set TrainerOptions::train");
  TUTTI_CHECK(whole,
              "find_lr: the model is sharded, and its weights cannot be put back; look for a rate "
              "with sharding.stage = ShardStage::none, on fewer layers if it has to be");
  TUTTI_CHECK(run.turns.empty(),
              "find_lr: the run has several optimizers, whose rates are not to be found by one "
              "loss; look for each in a run of its own, with the others' parameters frozen");
  TUTTI_CHECK(!optim::calls_closure(*state.optimizers.front()), "find_lr: the optimizer ",
              optim::class_name(*state.optimizers.front()),
              " calls a closure and chooses its own steps, so there is no rate to find");
}

TUTTI_INLINE bool take_loss(LrFinding& found, double lr, double loss,
                            const FindLrOptions& options) {
  // The average without its bias towards the 0 that it begins with.
  double average = 0;
  const auto count = static_cast<double>(found.losses.size() + 1);
  if (!found.losses.empty()) {
    average = found.smoothed.back() * (1 - std::pow(options.smoothing, count - 1));
  }
  average = options.smoothing * average + (1 - options.smoothing) * loss;
  found.lrs.push_back(lr);
  found.losses.push_back(loss);
  found.smoothed.push_back(average / (1 - std::pow(options.smoothing, count)));
  if (!std::isfinite(loss)) {
    found.diverged = true;
    return false;
  }
  const double least = *std::min_element(found.smoothed.begin(), found.smoothed.end());
  const double most = least > 0 ? options.divergence * least
                                : least + options.divergence * (found.smoothed.front() - least);
  found.diverged = options.divergence > 0 && found.losses.size() > 2 &&
                   found.smoothed.back() > most && found.smoothed.back() > least;
  return !found.diverged;
}

TUTTI_INLINE double suggest_lr(const LrFinding& found, const FindLrOptions& options) {
  const std::vector<double>& y = found.smoothed;
  const auto begin = static_cast<std::size_t>(options.skip_begin);
  const auto end = y.size() - std::min(y.size(), static_cast<std::size_t>(options.skip_end));
  std::vector<std::size_t> kept;
  for (std::size_t i = begin; i < end; ++i) {
    if (std::isfinite(y[i])) {
      kept.push_back(i);
    }
  }
  if (kept.size() < 2) {
    return 0;
  }
  // Central differences, one-sided at both ends.
  const auto slope = [&](std::size_t k) {
    const std::size_t from = kept[k == 0 ? 0 : k - 1];
    const std::size_t to = kept[std::min(k + 1, kept.size() - 1)];
    return (y[to] - y[from]) / static_cast<double>(k == 0 || k + 1 == kept.size() ? 1 : 2);
  };
  std::size_t best = 0;
  for (std::size_t k = 1; k < kept.size(); ++k) {
    best = slope(k) < slope(best) ? k : best;
  }
  return found.lrs[kept[best]];
}

}  // namespace tutti::train

namespace tutti {

TUTTI_INLINE std::string LrFinding::table() const {
  std::string out = "          lr         loss     smoothed\n";
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    char line[96];
    std::snprintf(line, sizeof line, "%12.4g %12.6g %12.6g%s\n", lrs[i], losses[i], smoothed[i],
                  lrs[i] == suggestion ? "  <- suggestion" : "");
    out += line;
  }
  return out;
}

TUTTI_INLINE std::string LrFinding::svg() const {
  constexpr double width = 640, height = 400, left = 70, right = 20, top = 20, bottom = 50;
  double low = 0, high = 1, x0 = 0, x1 = 1;
  bool any = false;
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    if (std::isfinite(smoothed[i])) {
      const double x = std::log10(lrs[i]);
      low = any ? std::min(low, smoothed[i]) : smoothed[i];
      high = any ? std::max(high, smoothed[i]) : smoothed[i];
      x0 = any ? x0 : x;
      x1 = x;
      any = true;
    }
  }
  high = high > low ? high : low + 1;
  x1 = x1 > x0 ? x1 : x0 + 1;
  const auto at_x = [&](double x) { return left + (x - x0) / (x1 - x0) * (width - left - right); };
  const auto at_y = [&](double y) {
    return height - bottom - (y - low) / (high - low) * (height - top - bottom);
  };
  const auto text = [](const char* format, auto... values) {
    char out[256];
    std::snprintf(out, sizeof out, format, values...);
    return std::string(out);
  };
  std::string out = text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n",
      width, height, width, height);
  out += text("<path d=\"M%g %gV%gH%g\" fill=\"none\" stroke=\"#444\"/>\n", left, top,
              height - bottom, width - right);
  for (int power = static_cast<int>(std::ceil(x0 - 1e-9)); power <= x1 + 1e-9; ++power) {
    out += text(
        "<path d=\"M%.1f %gv6\" stroke=\"#444\"/><text x=\"%.1f\" y=\"%g\" "
        "text-anchor=\"middle\">1e%d</text>\n",
        at_x(power), height - bottom, at_x(power), height - bottom + 20, power);
  }
  for (int i = 0; i <= 4; ++i) {
    const double value = low + (high - low) * i / 4;
    out += text("<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n", left - 8,
                at_y(value) + 4, value);
  }
  out += "<polyline fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\" points=\"";
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    if (std::isfinite(smoothed[i])) {
      out += text("%.1f,%.1f ", at_x(std::log10(lrs[i])), at_y(smoothed[i]));
    }
  }
  out += "\"/>\n";
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    if (suggestion > 0 && lrs[i] == suggestion) {
      out += text(
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"#d62728\"/><text x=\"%.1f\" "
          "y=\"%.1f\" fill=\"#d62728\">%.3g</text>\n",
          at_x(std::log10(suggestion)), at_y(smoothed[i]), at_x(std::log10(suggestion)) + 8,
          at_y(smoothed[i]) - 8, suggestion);
    }
  }
  out += text("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">learning rate</text>\n",
              (left + width - right) / 2, height - 10);
  out += text(
      "<text x=\"16\" y=\"%g\" text-anchor=\"middle\" transform=\"rotate(-90 16 %g)\">loss, "
      "smoothed</text>\n</svg>\n",
      (top + height - bottom) / 2, (top + height - bottom) / 2);
  return out;
}

TUTTI_INLINE void LrFinding::save_svg(const std::string& path) const {
  const std::string text = svg();
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  good = file != nullptr && std::fclose(file) == 0 && good;
  TUTTI_CHECK(good, "find_lr: the picture cannot be written to '", path, "'");
}

}  // namespace tutti
