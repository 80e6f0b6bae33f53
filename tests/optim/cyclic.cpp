#include <tutti/optim/cyclic.hpp>

#include "optim/progress.hpp"
#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// A run of 2 epochs of 10 batches, from its first batch on.
template <class S>
void check(const S& schedule, const std::vector<double>& multipliers) {
  for (std::size_t i = 0; i < multipliers.size(); ++i) {
    INFO("at batch " << i);
    const Progress now = progress_at(static_cast<std::int64_t>(i), "2ep", 10);
    CHECK(schedule(now) == Approx(multipliers[i]).margin(1e-12));
  }
}

}  // namespace

// The values are those of PyTorch 2.11's OneCycleLR and CyclicLR over max_lr, step by step, with
// total_steps = 20, max_lr = 0.5, base_lr = 0.05 and cycle_momentum = False.

TEST_CASE("OneCycle has the values of PyTorch's at every batch", "[optim][schedule][golden]") {
  check(OneCycle{}, {0.04,
                     0.131671842700025,
                     0.371671842700025,
                     0.668328157299975,
                     0.908328157299975,
                     1,
                     0.987464006235087,
                     0.950484632013474,
                     0.89091617757105,
                     0.811745653949763,
                     0.716943001791301,
                     0.611262021936289,
                     0.500002,
                     0.388741978063711,
                     0.283060998208699,
                     0.188258346050237,
                     0.10908782242895,
                     0.0495193679865263,
                     0.0125399937649126,
                     4e-06});
  check(OneCycle{.pct_start = 0.4,
                 .anneal_strategy = Anneal::linear,
                 .div_factor = 10,
                 .final_div_factor = 100},
        {0.1,
         0.228571428571429,
         0.357142857142857,
         0.485714285714286,
         0.614285714285714,
         0.742857142857143,
         0.871428571428571,
         1,
         0.91675,
         0.8335,
         0.75025,
         0.667,
         0.58375,
         0.5005,
         0.41725,
         0.334,
         0.25075,
         0.1675,
         0.08425,
         0.001});
  check(OneCycle{.pct_start = 0.35, .three_phase = true}, {0.04,
                                                           0.104307806183469,
                                                           0.28,
                                                           0.52,
                                                           0.76,
                                                           0.935692193816531,
                                                           1,
                                                           0.935692193816531,
                                                           0.76,
                                                           0.52,
                                                           0.28,
                                                           0.104307806183469,
                                                           0.04,
                                                           0.0380195754203126,
                                                           0.032470549057571,
                                                           0.0244519736372584,
                                                           0.0155520263627416,
                                                           0.00753345094242905,
                                                           0.00198442457968742,
                                                           4e-06});
  check(OneCycle{.pct_start = 0.25,
                 .anneal_strategy = Anneal::linear,
                 .div_factor = 4,
                 .final_div_factor = 8,
                 .three_phase = true},
        {0.25,
         0.4375,
         0.625,
         0.8125,
         1,
         0.8125,
         0.625,
         0.4375,
         0.25,
         0.230113636363636,
         0.210227272727273,
         0.190340909090909,
         0.170454545454545,
         0.150568181818182,
         0.130681818181818,
         0.110795454545455,
         0.0909090909090909,
         0.0710227272727273,
         0.0511363636363636,
         0.03125});
  check(OneCycle{.pct_start = 0},
        {0.993844194920888,  0.975528356034544,  0.945503480081135,   0.904508879153485,
         0.853553976379711,  0.793893450575732,  0.726996341888774,   0.654509879153485,
         0.578218919651185,  0.500002,           0.421785080348815,   0.345494120846515,
         0.273007658111226,  0.206110549424268,  0.146450023620289,   0.0954951208465151,
         0.0545005199188645, 0.0244756439654558, 0.00615980507911236, 4e-06});
  check(OneCycle{.pct_start = 1}, {0.04,
                                   0.0465465743666933,
                                   0.0660077239836955,
                                   0.0978525994208853,
                                   0.141212555489731,
                                   0.194904845619644,
                                   0.257464884101235,
                                   0.327186196166575,
                                   0.402166966172416,
                                   0.48036191417328,
                                   0.559638085826719,
                                   0.637833033827584,
                                   0.712813803833425,
                                   0.782535115898765,
                                   0.845095154380356,
                                   0.898787444510269,
                                   0.942147400579115,
                                   0.973992276016305,
                                   0.993453425633307,
                                   1});
}

TEST_CASE("Cyclic has the values of PyTorch's at every batch", "[optim][schedule][golden]") {
  check(Cyclic{.alpha_i = 0.1, .step_size_up = "4ba"},
        {0.1,  0.325, 0.55, 0.775, 1,    0.775, 0.55, 0.325, 0.1,  0.325,
         0.55, 0.775, 1,    0.775, 0.55, 0.325, 0.1,  0.325, 0.55, 0.775});
  check(Cyclic{.alpha_i = 0.1,
               .step_size_up = "3ba",
               .step_size_down = "5ba",
               .mode = CycleHeight::triangular2},
        {0.1, 0.4,  0.7,  1,    0.82, 0.64, 0.46, 0.28,  0.1,  0.25,
         0.4, 0.55, 0.46, 0.37, 0.28, 0.19, 0.1,  0.175, 0.25, 0.325});
  check(Cyclic{.alpha_i = 0.1,
               .step_size_up = "2ba",
               .step_size_down = "0.2dur",
               .mode = CycleHeight::exp_range,
               .gamma = 0.9},
        {0.1,
         0.505,
         0.829,
         0.592075,
         0.395245,
         0.23286025,
         0.1,
         0.315233605,
         0.487420489,
         0.361508830075,
         0.256905298045,
         0.17060738412025,
         0.1,
         0.214383962274805,
         0.305891132094649,
         0.238976514163888,
         0.183385908498333,
         0.13752365882425,
         0.1,
         0.160788327295284});
}

TEST_CASE("the length of a cycle may be in any unit, and past it OneCycle stays at its last value",
          "[optim][schedule][law]") {
  for (const Time length : {Time("10ba"), Time("1ep"), Time("0.5dur")}) {
    const OneCycle once{.t_max = length};
    for (const std::int64_t batch : {9, 10, 11, 500}) {
      CHECK(once(progress_at(batch, "2ep", 10)) == Approx(1 / 25e4));
    }
    CHECK(once(progress_at(2, "2ep", 10)) == 1.0);
    const Cyclic again{.alpha_i = 0.5, .step_size_up = length};
    CHECK(again(progress_at(30, "2ep", 10)) == 1.0);
  }
  CHECK(OneCycle{.t_max = "40sp"}(progress_at(3, "2ep", 10)) > 0.99);  // 4 samples a batch
  CHECK(OneCycle{.t_max = "40sp"}(progress_at(10, "2ep", 10)) == Approx(1 / 25e4));
  CHECK(OneCycle{.t_max = "5ba"}(progress_at(19, "4ep", 10), 4.0) == Approx(1 / 25e4));
  CHECK(OneCycle{.t_max = "5ba"}(progress_at(5, "4ep", 10), 4.0) == 1.0);
  CHECK(Cyclic{.step_size_up = "5ba"}(progress_at(20, "4ep", 10), 4.0) == 1.0);
}

TEST_CASE("a cycle of a single batch is no division by nothing", "[optim][schedule]") {
  CHECK(OneCycle{.t_max = "1ba", .pct_start = 1}(progress_at(0, "2ep", 10)) == 1.0);
  CHECK(OneCycle{.t_max = "1ba"}(progress_at(0, "2ep", 10)) == Approx(1 / 25e4));
  CHECK(OneCycle{.t_max = "2ba", .pct_start = 0.5}(progress_at(0, "2ep", 10)) == 1.0);
}

TEST_CASE("numbers that make no cycle are refused by name", "[optim][schedule][error]") {
  const Progress p = progress_at(1, "2ep", 10);
  for (const double part : {-0.1, 1.1}) {
    CHECK_THROWS_WITH(
        OneCycle{.pct_start = part}(p),
        ContainsSubstring("OneCycle's pct_start is") && ContainsSubstring("give one from 0 to 1"));
  }
  CHECK_THROWS_WITH(OneCycle{.div_factor = 0}(p), ContainsSubstring("OneCycle's div_factor is"));
  CHECK_THROWS_WITH(OneCycle{.final_div_factor = -1}(p),
                    ContainsSubstring("OneCycle's final_div_factor is"));
  CHECK_THROWS_WITH(OneCycle{.t_max = "0ba"}(p), ContainsSubstring("OneCycle's t_max is 0ba"));
  CHECK_THROWS_WITH(Cyclic{.step_size_up = "0ba"}(p),
                    ContainsSubstring("Cyclic's step_size_up is 0ba"));
  CHECK_THROWS_WITH(Cyclic{.step_size_down = "-1ba"}(p),
                    ContainsSubstring("Cyclic's step_size_down is -1ba"));
  CHECK_THROWS_AS((Cyclic{.step_size_up = "4ba", .step_size_down = "4sp"}(p)), TimeUnitError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
