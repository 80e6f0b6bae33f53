#include <tutti/core/check.hpp>

#include "support/catch.hpp"

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

}  // namespace

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
