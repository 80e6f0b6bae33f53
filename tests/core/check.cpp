#include <tutti/core/check.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::BatchEnd;
using tutti::EpochEnd;
using tutti::State;
namespace detail = tutti::detail;

struct Right final {
  void apply(BatchEnd, State&) {}
  void batch_end(int) {}              // not a hook's parameters
  bool matches(int) { return true; }  // likewise
};
struct Misspelt final {
  void aply(BatchEnd, State&) {}
};
struct AsMethod final {
  void epoch_end(const State&) {}
};
struct Base {
  void apply(BatchEnd, State&) {}
};
struct Hides final : Base {
  int option = 1;
  void apply(EpochEnd, State&) {}
};
struct Keeps final : Base {
  int option = 1;
  using Base::apply;
  void apply(EpochEnd, State&) {}
};
struct Inherits final : Base {};
class Private {
  void apply(BatchEnd, State&) {}
};
struct Nothing {};
struct NotConst final {
  void apply(BatchEnd, State&) {}
  void apply(EpochEnd, State&) const {}
};

// Near misses of four kinds, and names that only resemble them.
struct WithoutS final {
  static constexpr tutti::Rules rule{};
  void apply(BatchEnd, State&) {}
};
struct Exchanged final {
  void vaildate() const {}
  void apply(BatchEnd, State&) {}
};
struct Camel final {
  bool wantsType(const State&) const { return true; }
  void apply(BatchEnd, State&) {}
};
struct OfComposer final {
  void load_state_dict(int) {}
  void apply(BatchEnd, State&) {}
};
struct TakesLoaded final {
  void takes_loaded(State&) {}
  void apply(BatchEnd, State&) {}
};
struct MetricInterval final {
  std::int64_t metric_interval = 1;
  void log_metrics(std::span<const tutti::LoggedMetric>, std::int64_t) {}
  void apply(BatchEnd, State&) {}
};
struct OwnInterval final {
  std::int64_t metric_interval = 1;  // of no logger
  void apply(BatchEnd, State&) {}
};
struct ReadBatch final {
  static constexpr bool read_batch = false;
  void apply(BatchEnd, State&) {}
};
struct AsksStateWrongly final {
  bool read_batch(const State&) const { return true; }
  void apply(BatchEnd, State&) {}
};
struct RunBefore final {
  using run_before = tutti::types<Right>;
  void apply(BatchEnd, State&) {}
};
struct ConflictWith final {
  using conflict_with = tutti::types<Right>;
  void apply(BatchEnd, State&) {}
};
struct Resembles final {
  double saves = 0;  // counts; no function
  int step = 0;      // likewise
  int rule = 0;      // no rules
  void validate() const {}
  void apply(BatchEnd, State&) {}

 private:
  void save_state() {}  // nobody else's business
};
struct BothNames final {
  static constexpr tutti::Rules rules{};
  static constexpr tutti::Rules rule{};
  void apply(BatchEnd, State&) {}
};

// What stood by itself before it was a field of a value.
struct OldRule final {
  using runs_before = tutti::types<Right>;
  void apply(BatchEnd, State&) {}
};
struct OldFact final {
  static constexpr bool reads_batch = false;
  void apply(BatchEnd, State&) {}
};
struct OldFactOfObject final {
  bool reads_gradients = false;
  void apply(BatchEnd, State&) {}
};
struct AsksState final {
  bool reads_batch(const State&) const { return true; }
  void apply(BatchEnd, State&) {}
};
struct OwnMembers final {
  int tags = 0;  // no list of types
  void fuses_into_step() {}
  void apply(BatchEnd, State&) {}
};
struct RulesOfObject final {
  tutti::Rules rules{};
  void apply(BatchEnd, State&) {}
};
struct AboutIsList final {
  using about = tutti::types<>;
  void apply(BatchEnd, State&) {}
};

struct NotConstSave final {
  void save(tutti::Archive&) {}
  void load(const tutti::Archive&) {}
  void apply(BatchEnd, State&) {}
};
struct CloseAlone final {
  void close() {}
  void apply(BatchEnd, State&) {}
};
struct TakesLoadedOfNothing final {
  void take_loaded() {}
  void apply(BatchEnd, State&) {}
};
struct KeptElsewhereNotConst final {
  std::vector<std::string> kept_elsewhere(State&) { return {}; }
  void apply(BatchEnd, State&) {}
};
struct ClosesAlso final {
  void close() {}
  void close(State&) {}
  void apply(BatchEnd, State&) {}
};
struct ComposerHook final {
  void batch_end(State&, tutti::Logger&) {}
  void apply(EpochEnd, State&) {}
};
struct Templates final {
  template <class Archive>
  void save(Archive&) const {}
  template <class Archive>
  void load(const Archive&) {}
  template <class S>
  void close(S&) {}
  void apply(BatchEnd, State&) {}
};

}  // namespace

TEST_CASE("near misses of members are told from members of one's own", "[core][check][law]") {
  STATIC_REQUIRE(!detail::RightMembers<WithoutS>);
  STATIC_REQUIRE(!detail::RightMembers<Exchanged>);
  STATIC_REQUIRE(!detail::RightMembers<Camel>);
  STATIC_REQUIRE(!detail::RightMembers<OfComposer>);
  STATIC_REQUIRE(!detail::RightMembers<TakesLoaded>);
  STATIC_REQUIRE(!detail::RightMembers<MetricInterval>);
  STATIC_REQUIRE(detail::RightMembers<OwnInterval>);
  STATIC_REQUIRE(!detail::RightMembers<ReadBatch>);
  STATIC_REQUIRE(!detail::RightMembers<AsksStateWrongly>);
  STATIC_REQUIRE(!detail::RightMembers<RunBefore>);
  STATIC_REQUIRE(!detail::RightMembers<ConflictWith>);
  STATIC_REQUIRE(detail::RightMembers<Resembles>);
  STATIC_REQUIRE(detail::RightMembers<BothNames>);
}

TEST_CASE("members of the right name have to be what the library uses", "[core][check][law]") {
  STATIC_REQUIRE(!detail::RightMembers<NotConstSave>);
  STATIC_REQUIRE(!detail::RightMembers<CloseAlone>);
  STATIC_REQUIRE(!detail::RightMembers<TakesLoadedOfNothing>);
  STATIC_REQUIRE(!detail::RightMembers<KeptElsewhereNotConst>);
  STATIC_REQUIRE(detail::RightMembers<ClosesAlso>);
  STATIC_REQUIRE(detail::RightMembers<Templates>);
}

TEST_CASE("fields of rules and facts are refused where they stand by themselves",
          "[core][check][law]") {
  STATIC_REQUIRE(!detail::RightMembers<OldRule>);
  STATIC_REQUIRE(!detail::RightMembers<OldFact>);
  STATIC_REQUIRE(!detail::RightMembers<OldFactOfObject>);
  STATIC_REQUIRE(detail::RightMembers<AsksState>);
  STATIC_REQUIRE(detail::RightMembers<OwnMembers>);
  STATIC_REQUIRE(!detail::RightMembers<RulesOfObject>);
  STATIC_REQUIRE(!detail::RightMembers<AboutIsList>);
}

TEST_CASE("the methods of Composer's callbacks are told from members", "[core][check][law]") {
  STATIC_REQUIRE(!detail::RightNames<ComposerHook>);
}

TEST_CASE("methods that only look like hooks are told from hooks", "[core][check][law]") {
  STATIC_REQUIRE(detail::RightNames<Right>);
  STATIC_REQUIRE(!detail::apply_is_spelt_right<Misspelt>);
  STATIC_REQUIRE(!detail::hooks_are_called_apply<AsMethod>);
}

TEST_CASE("hooks of a base are hidden unless they are named", "[core][check][law]") {
  STATIC_REQUIRE(!detail::hides_no_hook<Hides>);
  STATIC_REQUIRE(detail::hides_no_hook<Keeps>);
  STATIC_REQUIRE(detail::hides_no_hook<Inherits>);
}

TEST_CASE("a private apply() is told from none", "[core][check][law]") {
  STATIC_REQUIRE(!detail::apply_is_public<Private>);
  STATIC_REQUIRE(detail::apply_is_public<Nothing>);
  STATIC_REQUIRE(detail::apply_is_public<Right>);
}

TEST_CASE("hooks of a const policy have to be const", "[core][check][law]") {
  STATIC_REQUIRE(!detail::apply_is_const<NotConst, BatchEnd>);
  STATIC_REQUIRE(detail::apply_is_const<NotConst, EpochEnd>);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
