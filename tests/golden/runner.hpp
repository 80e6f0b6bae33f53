#pragma once

// The golden runner: every function of an index.json is mapped to a Handler that runs one case of
// it and tells a Verdict what came out. runner.cpp goes through the index; the other files of this
// folder hold the handlers. A handler reads a case's parameters through Arguments and never by the
// case's number, so that it serves any cases of its function.

#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/golden.hpp"

namespace golden {

/// Thrown by a handler for a case that needs what tutti does not have; the text is the reason.
struct Skipped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Thrown for a case that names an argument, a draw or a type that its handler does not know.
struct Unknown : std::logic_error {
  using std::logic_error::logic_error;
};

/// What a handler found out about one case.
class Verdict {
 public:
  explicit Verdict(const Case& c) : case_(c) {}

  /// Compares with the case's output `key` by the case's tolerance.
  void tensor(const std::string& key, const at::Tensor& got);

  /// Compares a number with the output `key`, of whatever type that is.
  void number(const std::string& key, double got);

  /// Says why the output `key` has no counterpart in tutti.
  void leave_out(const std::string& key) { seen_.insert(key); }

  /// Notes a disagreement unless `holds`.
  void check(bool holds, const std::string& complaint);

  /// Runs `call`, which has to throw exactly when the case says that the reference raised. Returns
  /// whether it went through.
  bool raises_as_reference(const std::function<void()>& call);

  /// Says that tutti goes on, on purpose, where the reference raises.
  void goes_on_on_purpose() { raise_judged_ = true; }

  /// All that is wrong, outputs that nobody compared and an error that did not come included; empty
  /// when all is well.
  std::vector<std::string> complaints() const;

 private:
  const Case& case_;
  std::set<std::string> seen_;
  std::vector<std::string> complaints_;
  bool raise_judged_ = false;
};

/// Named arguments of a case, as Python's keyword arguments: done() refuses what nobody asked for.
class Arguments {
 public:
  /// `what`: whose arguments, for messages. A null object has no members.
  Arguments(const Json& object, std::string what) : object_(object), what_(std::move(what)) {}

  bool has(const std::string& key) const { return find(key) != nullptr; }
  const Json& json(const std::string& key) const;
  double number(const std::string& key, double otherwise) const;
  std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;

  /// Throws for members that were never looked up.
  void done() const;

 private:
  const Json* find(const std::string& key) const;

  const Json& object_;
  std::string what_;
  mutable std::set<std::string> asked_;
};

using Handler = void (*)(const Case&, Verdict&);
using Handlers = std::map<std::string, Handler>;

Handlers value_handlers();        ///< time strings and arithmetic, schedules
Handlers loss_handlers();         ///< losses and metrics
Handlers batch_handlers();        ///< algorithms on batches
Handlers layer_handlers();        ///< surgery
Handlers optimizer_handlers();    ///< optimizers, averages, clipping, SAM
Handlers training_handlers();     ///< whole runs
Handlers trace_handlers();        ///< what runs when
Handlers image_handlers();        ///< what is done to images and batches of them
Handlers run_handlers();          ///< averages, freezing, masks and lengths over a run
Handlers transformer_handlers();  ///< ALiBi and gated linear units
Handlers surgery_handlers();      ///< surgery of the other vision and precision algorithms

}  // namespace golden
