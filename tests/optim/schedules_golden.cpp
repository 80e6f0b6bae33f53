#include <tutti/optim/schedules.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <map>
#include <string>

namespace UNITY_BUILD_UNIQUE_ID {

// Every scheduler of the reference, batch by batch.

using namespace tutti;

namespace {

class Arguments {
 public:
  explicit Arguments(const golden::Json& json) : json_(json) {}

  Time time(const char* key, Time otherwise = "1dur") const {
    const golden::Json* found = json_.find(key);
    return found == nullptr ? otherwise : Time::parse(found->string());
  }
  double number(const char* key, double otherwise) const {
    const golden::Json* found = json_.find(key);
    return found == nullptr ? otherwise : found->number();
  }
  bool flag(const char* key) const {
    const golden::Json* found = json_.find(key);
    return found != nullptr && found->boolean();
  }
  TimeList times(const char* key) const {
    TimeList out;
    for (const golden::Json& text : json_[key].array()) {
      out.push_back(Time::parse(text.string()));
    }
    return out;
  }

 private:
  const golden::Json& json_;
};

using Make = Schedule (*)(const Arguments&);

const std::map<std::string, Make> plain = {
    {"StepScheduler",
     [](const Arguments& a) -> Schedule {
       return Step{a.time("step_size"), a.number("gamma", 0.1)};
     }},
    {"MultiStepScheduler",
     [](const Arguments& a) -> Schedule {
       return MultiStep{a.times("milestones"), a.number("gamma", 0.1)};
     }},
    {"ConstantScheduler",
     [](const Arguments& a) -> Schedule {
       return Constant{a.number("alpha", 1.0), a.time("t_max")};
     }},
    {"LinearScheduler",
     [](const Arguments& a) -> Schedule {
       return Linear{a.number("alpha_i", 1.0), a.number("alpha_f", 0.0), a.time("t_max")};
     }},
    {"ExponentialScheduler",
     [](const Arguments& a) -> Schedule {
       return Exponential{a.number("gamma", 0.0), a.time("decay_period", "1ep")};
     }},
    {"CosineAnnealingScheduler",
     [](const Arguments& a) -> Schedule {
       return CosineAnnealing{a.time("t_max"), a.number("alpha_f", 0.0)};
     }},
    {"CosineAnnealingWarmRestartsScheduler",
     [](const Arguments& a) -> Schedule {
       return CosineAnnealingWarmRestarts{a.time("t_0"), a.number("t_mult", 1.0),
                                          a.number("alpha_f", 0.0)};
     }},
    {"PolynomialScheduler",
     [](const Arguments& a) -> Schedule {
       return Polynomial{a.number("power", 0.0), a.time("t_max"), a.number("alpha_f", 0.0)};
     }},
};

const std::map<std::string, Make> with_warmup = {
    {"MultiStepWithWarmupScheduler",
     [](const Arguments& a) -> Schedule {
       return MultiStepWithWarmup{a.time("t_warmup"), a.times("milestones"), a.number("gamma", 0.1),
                                  a.flag("scale_warmup")};
     }},
    {"ConstantWithWarmupScheduler",
     [](const Arguments& a) -> Schedule {
       return ConstantWithWarmup{a.time("t_warmup"), a.number("alpha", 1.0), a.time("t_max"),
                                 a.flag("scale_warmup")};
     }},
    {"LinearWithWarmupScheduler",
     [](const Arguments& a) -> Schedule {
       return LinearWithWarmup{a.time("t_warmup"), a.number("alpha_i", 1.0),
                               a.number("alpha_f", 0.0), a.time("t_max"), a.flag("scale_warmup")};
     }},
    {"CosineAnnealingWithWarmupScheduler",
     [](const Arguments& a) -> Schedule {
       return CosineAnnealingWithWarmup{a.time("t_warmup"), a.time("t_max"),
                                        a.number("alpha_f", 0.0), a.flag("scale_warmup")};
     }},
    {"PolynomialWithWarmupScheduler",
     [](const Arguments& a) -> Schedule {
       return PolynomialWithWarmup{a.time("t_warmup"), a.number("power", 2.0), a.time("t_max"),
                                   a.number("alpha_f", 0.0), a.flag("scale_warmup")};
     }},
};

Schedule make(const golden::Case& c) {
  const std::string name = c.params["class"].string();
  const auto& table = name.find("Warmup") == std::string::npos ? plain : with_warmup;
  return table.at(name)(Arguments(c.params["args"]));
}

Progress progress_of(const golden::Case& c, std::int64_t batch) {
  // The reference's runs were not shortened by the ratio.
  Progress p{.max_duration = Time::parse(c.params["max_duration"].string()),
             .dataloader_len = c.params["dataloader_len"].integer()};
  p.timestamp.batch = batch;
  p.timestamp.epoch = batch / p.dataloader_len;
  p.timestamp.sample = 4 * batch;
  p.timestamp.token = 32 * batch;
  return p;
}

}  // namespace

TEST_CASE("schedules give the reference's multipliers at every batch",
          "[optim][schedule][golden]") {
  std::size_t checked = 0;
  for (const golden::Case& c : golden::cases("scheduler")) {
    INFO(c.name << " " << c.params["class"].string());
    const Schedule schedule = make(c);
    const double ssr = c.params["ssr"].number();
    if (c.expect.is_object() && c.expect.contains("raises")) {
      const std::string raises = c.expect["raises"].string();
      CHECK((raises == "ValueError" || raises == "ZeroDivisionError"));
      CHECK_THROWS_AS(schedule(progress_of(c, 0), ssr), std::invalid_argument);
    } else {
      const std::int64_t batches = c.params["batches"].integer();
      const at::Tensor got = at::empty({batches + 1}, at::kDouble);
      for (std::int64_t batch = 0; batch <= batches; ++batch) {
        got[batch] = schedule(progress_of(c, batch), ssr);
      }
      CHECK_GOLDEN(c, "multiplier", got);
    }
    ++checked;
  }
  CHECK(checked >= 70);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
