// SPDX-License-Identifier: Apache-2.0
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

/// A difference from the reference in what is accepted, and the page of docs/ that states it in
/// these words.
struct Difference {
  std::string_view page;   ///< "algorithms/colout.md"
  std::string_view words;  ///< as they stand there, but for line ends
  /// Of a value that the reference takes and tutti refuses: how tutti's message begins.
  std::string_view message = "";

  auto operator<=>(const Difference&) const = default;
};

/// The message of `error` without the stack frames that LibTorch adds.
std::string sentence(const std::exception& error);

/// Whether `error` is of the kind that stands for Python's exception `raises`. What is an accident
/// in the reference, as a division by zero, is a wrong value here.
bool is_kind(const std::exception& error, const std::string& raises);

/// Whether the message of `error` has one of the names in it, however it is written:
/// "GhostBatchNorm" for "apply_ghost_batchnorm".
using Names = std::vector<std::string>;
bool names_one(const std::exception& error, const Names& who);

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

  /// Says that by this stated difference no output of the case has one.
  void leave_out_all(const Difference& difference);

  /// Notes a disagreement unless `holds`.
  void check(bool holds, const std::string& complaint);

  /// Runs `call`, which has to throw exactly when the case says that the reference raised, an
  /// exception of that kind whose message names one of `who` (empty: the function of the case).
  /// Returns whether it went through.
  bool raises_as_reference(const std::function<void()>& call, const Names& who = {});

  /// The same for an exception that was caught.
  void judge(const std::exception& error, const Names& who = {});

  /// The same where `raises` is what the reference raised; `what`: for the complaint.
  void judge(const std::exception& error, const std::string& raises, const Names& who,
             const std::string& what);

  /// Says that tutti goes on where the reference raises, or refuses what the reference takes, as
  /// docs/ state.
  void differs(const Difference& difference);

  /// The differences that came up.
  const std::set<Difference>& stated() const { return stated_; }

  /// All that is wrong, outputs that nobody compared and an error that did not come included; empty
  /// when all is well.
  std::vector<std::string> complaints() const;

 private:
  const Case& case_;
  std::set<std::string> seen_;
  std::vector<std::string> complaints_;
  std::set<Difference> stated_;
  bool raise_judged_ = false;
  bool refused_as_stated_ = false;
};

/// What tutti refuses and the reference takes.
const std::vector<Difference>& stated_refusals();

/// Differences that a handler itself notices.
namespace stated {
inline constexpr Difference any_batch{
    "algorithms/gyro_dropout.md",
    "A batch that is no multiple of `tau` is dealt out as evenly as can be"};
inline constexpr Difference short_warmup{
    "algorithms/seq_length_warmup.md",
    "Warm-ups with fewer batches than steps take several steps a batch"};
inline constexpr Difference warmup_units{"algorithms/stochastic_depth.md",
                                         "The warm-up may be any time, batches too"};
inline constexpr Difference whole_batches{
    "algorithms/ghost_batchnorm.md",
    "Evaluation takes a batch of any size; the reference throws there for one below"};
inline constexpr Difference one_weight{
    "algorithms/weight_standardization.md",
    "A convolution with one weight per channel is left alone; the reference makes it zero"};
inline constexpr Difference kept_parts{
    "algorithms/colout.md",
    "Parts are rounded down after allowing for what doubles cannot express"};
inline constexpr Difference ignored_positions{
    "algorithms/label_smoothing.md",
    "Positions that are ignored (negative indices, dense rows without any class) stay empty"};
inline constexpr Difference kept_examples{
    "algorithms/selective_backprop.md",
    "`keep` of a batch is rounded down after allowing for what doubles cannot express"};
inline constexpr Difference weak_factors{
    "algorithms/randaugment.md",
    "At severities below 1 color, contrast, brightness and sharpness stay on both sides of 1"};
inline constexpr Difference severity_zero{"algorithms/augmix.md", "Severity 0 changes nothing"};
inline constexpr Difference smoothing_alone{
    "algorithms/ema.md", "`smoothing` alone suffices and takes the place of the default half life"};
inline constexpr Difference ema_default{"algorithms/ema.md",
                                        "Giving neither means the default half life"};
inline constexpr Difference time_text{
    "features.md", "Every field of a wall-clock time has its letter, in either case, and any size"};
inline constexpr Difference whole_number{
    "features.md", "A number of floating type without a fraction beside a time is a whole number"};
}  // namespace stated

/// Named arguments of a case, as Python's keyword arguments: done() refuses what nobody asked for.
class Arguments {
 public:
  /// `what`: whose arguments, for messages. A null object has no members.
  Arguments(const Json& object, std::string what) : object_(object), what_(std::move(what)) {}

  const std::string& what() const { return what_; }
  bool has(const std::string& key) const { return find(key) != nullptr; }
  const Json& json(const std::string& key) const;
  double number(const std::string& key, double otherwise) const;
  std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;

  /// Skips the case when the argument is there and is not `value`, the one that tutti has.
  void only(const std::string& key, const Json& value) const;

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
