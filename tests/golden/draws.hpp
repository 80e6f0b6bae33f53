// SPDX-License-Identifier: Apache-2.0
#pragma once

// The reference's random draws as a tape that an Rng plays.

#include <cmath>
#include <memory>
#include <string>

#include <tutti/core/rng.hpp>

#include "golden/runner.hpp"

namespace golden {

/// Where `name` stands in a list of names.
inline std::int64_t place_in(const Json& list, const std::string& name) {
  std::int64_t at = 0;
  for (const Json& entry : list.array()) {
    if (entry.string() == name) {
      return at;
    }
    ++at;
  }
  throw std::invalid_argument("'" + name + "' is not in the list that it was chosen from");
}

/// The number of [0, 1) that `value` is of the range that a call's arguments name, if they name
/// one, such that scaling it gives `value` again, bit for bit.
inline double part_of_range(const Json& args, double value) {
  if (args.size() == 0) {
    return value;
  }
  const auto bound = [&](std::size_t i, const char* name) {
    return args[i].is_object() ? args[i][name].number() : args[i].number();
  };
  const double low = bound(0, "low");
  const double high = bound(1, "high");
  double part = high == low ? 0 : (value - low) / (high - low);
  for (int tries = 0; tries < 64 && low + (high - low) * part != value; ++tries) {
    const bool below = low + (high - low) * part < value;
    part = std::nextafter(part, below == (high > low) ? 2.0 : -1.0);
  }
  return part;
}

/// Puts draw `i` of the case onto the tape, by its kind.
inline void record(const Case& c, std::size_t i, tutti::Tape& tape) {
  const std::string& call = c.draws[i]["call"].string();
  if (call == "numpy.random.beta") {
    tape.betas.push_back(c.draw_number(i));
  } else if (call == "numpy.random.randint") {
    tape.integers.push_back(c.draw(i).integer());
  } else if (call == "torch.randint") {
    tape.integers.push_back(c.draw_tensor(i).item<std::int64_t>());
  } else if (call == "numpy.random.uniform" || call == "numpy.random.random") {
    tape.uniforms.push_back(part_of_range(c.draws[i]["args"], c.draw_number(i)));
  } else if (call == "numpy.random.dirichlet") {
    tape.weights.push_back(c.draw_tensor(i));
  } else if (call == "numpy.random.choice" && c.draw_is_tensor(i)) {
    tape.choices.push_back(c.draw_tensor(i));
  } else if (call == "numpy.random.choice") {
    tape.integers.push_back(place_in(c.draws[i]["args"][0], c.draw(i).string()));
  } else if (call == "torch.randperm") {
    tape.permutations.push_back(c.draw_tensor(i));
  } else {
    throw Unknown("no Rng draws as " + call + " does; teach golden/draws.hpp");
  }
}

/// A CutMix draws permutation, lambda and the centre, and then, in the reference, a second lambda
/// that it does not use: the draw after a centre is that one.
inline bool is_unused(const Case& c, std::size_t i) {
  const auto call = [&](std::size_t at) { return c.draws[at]["call"].string(); };
  return i >= 3 && call(i) == "numpy.random.beta" && call(i - 1) == "numpy.random.randint" &&
         call(i - 2) == "numpy.random.randint" && call(i - 3) == "numpy.random.beta" &&
         (i == 3 || call(i - 4) == "torch.randperm");
}

/// Masks and picks of GyroDropout, whose layers have streams of their own.
inline bool is_of_layer(const Case& c, std::size_t i) {
  const std::string& call = c.draws[i]["call"].string();
  return call == "torch.rand" ||
         (call == "numpy.random.choice" && c.draw_is_tensor(i) && c.draws[i]["args"].size() == 2);
}

/// All draws of the case, in order, without those that the reference does not use.
inline std::shared_ptr<tutti::Tape> tape_of(const Case& c) {
  auto tape = std::make_shared<tutti::Tape>();
  for (std::size_t i = 0; i < c.draws.size(); ++i) {
    if (!is_unused(c, i) && !is_of_layer(c, i)) {
      record(c, i, *tape);
    }
  }
  return tape;
}

/// An Rng that plays the draws of the case.
inline tutti::Rng replay(const Case& c) {
  tutti::Rng rng;
  rng.replay(tape_of(c));
  return rng;
}

/// Whether every draw was taken.
inline bool is_used_up(const tutti::Tape& tape) {
  return tape.betas.empty() && tape.uniforms.empty() && tape.integers.empty() &&
         tape.permutations.empty() && tape.choices.empty() && tape.weights.empty();
}

}  // namespace golden
