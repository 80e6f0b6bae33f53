#pragma once

// The reference's random draws as a tape that an Rng plays.

#include <memory>
#include <string>

#include <tutti/core/rng.hpp>

#include "golden/runner.hpp"

namespace golden {

/// Puts draw `i` of the case onto the tape, by its kind.
inline void record(const Case& c, std::size_t i, tutti::Tape& tape) {
  const std::string& call = c.draws[i]["call"].string();
  if (call == "numpy.random.beta") {
    tape.betas.push_back(c.draw_number(i));
  } else if (call == "numpy.random.randint") {
    tape.integers.push_back(c.draw(i).integer());
  } else if (call == "torch.randperm") {
    tape.permutations.push_back(c.draw_tensor(i));
  } else {
    throw std::invalid_argument("no Rng draws as " + call + " does; teach golden/draws.hpp");
  }
}

/// A CutMix draws permutation, lambda and the centre, and then, in the reference, a second lambda
/// that it does not use: the draw after a centre is that one.
inline bool is_unused(const Case& c, std::size_t i) {
  const auto call = [&](std::size_t at) { return c.draws[at]["call"].string(); };
  return i >= 3 && call(i) == "numpy.random.beta" && call(i - 1) == "numpy.random.randint" &&
         call(i - 2) == "numpy.random.randint" && call(i - 3) == "numpy.random.beta";
}

/// All draws of the case, in order, without those that the reference does not use.
inline std::shared_ptr<tutti::Tape> tape_of(const Case& c) {
  auto tape = std::make_shared<tutti::Tape>();
  for (std::size_t i = 0; i < c.draws.size(); ++i) {
    if (!is_unused(c, i)) {
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
         tape.permutations.empty();
}

}  // namespace golden
