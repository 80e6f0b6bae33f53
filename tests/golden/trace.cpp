#include "golden/training.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <tutti/data/image_loader.hpp>
#include <tutti/models/bert.hpp>

#include "golden/algorithms.hpp"
#include "golden/run_algorithms.hpp"
#include "support/temporary_folder.hpp"

namespace golden {
namespace {

tutti::AnyModel trace_model(const Case& c) {
  if (c.params["model"].is_array()) {
    return classifier(build_model(c.params["model"], Layers::replaceable),
                      c.params["classes"].integer());
  }
  return tutti::models::BertForMaskedLM(tutti::models::BertOptions{.vocab_size = 40,
                                                                   .hidden_size = 16,
                                                                   .num_hidden_layers = 1,
                                                                   .num_attention_heads = 2,
                                                                   .intermediate_size = 32})
      .ptr();
}

// Random images and labels, or text: numerics play no part in what runs when.
std::vector<tutti::Batch> any_data(const Case& c, std::int64_t batches) {
  const std::int64_t size = c.params["batch_size"].integer();
  const std::int64_t classes = c.params["classes"].integer();
  std::vector<tutti::Batch> out;
  for (std::int64_t i = 0; !c.params["model"].is_array() && i < batches; ++i) {
    const at::Tensor ids = at::randint(40, {size, 32}, at::kLong);
    out.push_back({{"input_ids", ids}, {"labels", ids}, {"attention_mask", at::ones_like(ids)}});
  }
  if (!out.empty()) {
    return out;
  }
  for (std::int64_t i = 0; i < batches; ++i) {
    out.emplace_back(at::rand({size, 3, 16, 16}), at::randint(classes, {size}, at::kLong));
  }
  return out;
}

// Work that is tutti's own. ChannelsLast: its inputs. GyroDropout: the same masks in both passes of
// SAM. EMA: at the end of predict, for the reference predicts without the averages; and where its
// average begins at a batch or an epoch at which none is taken, `ended` being how many have ended.
bool is_own_work(const AnyAlgorithm& algorithm, const std::string& event, std::int64_t ended) {
  if (algorithm.name() == "ChannelsLast") {
    return event != "init";
  }
  if (algorithm.name() == "GyroDropout") {
    return event != "fit_start";
  }
  const auto* held = dynamic_cast<const detail::Held<Epochwise<tutti::EMA>>*>(&algorithm);
  if (held == nullptr || event == "predict_end") {
    return held != nullptr;
  }
  return (event == "batch_end" || event == "epoch_end") &&
         ended % held->algorithm().policy.interval().count() != 0;
}

// Lines as the reference writes them: slots by the names of what they hold, with their place when a
// name occurs twice.
std::vector<std::string> as_reference(std::vector<std::string> lines,
                                      const Algorithms& algorithms) {
  std::map<std::string, std::int64_t> events;
  for (std::string& line : lines) {
    const auto at = line.find(">slot");
    if (at == std::string::npos) {
      ++events[line];
      continue;
    }
    const auto place = static_cast<std::size_t>(std::stoul(line.substr(at + 5)));
    const std::string event = line.substr(0, at);
    if (is_own_work(*algorithms.at(place), event, events[event])) {
      line.clear();
      continue;
    }
    const std::string_view name = algorithms.at(place)->name();
    const auto twice = std::count_if(algorithms.begin(), algorithms.end(),
                                     [&](const auto& other) { return other->name() == name; });
    line.erase(at + 1);
    line.append(name == "ALiBi" ? "Alibi" : name);
    line += twice > 1 ? "#" + std::to_string(algorithms.at(place)->place) : "";
  }
  std::erase(lines, "");
  return lines;
}

// What the reference's trace has and tutti's does not, on purpose: GradientClipping's work at INIT
// is for DeepSpeed, which tutti has not; SWA allocates when it begins to average; SeqLengthWarmup
// takes any model; ALiBi without a scaling leaves batches alone; and EMA's averages are in the
// model only while a checkpoint is written, which is no event, so that nothing else sees them. In
// the reference they stay from the *Checkpoint event to the next BatchStart.
std::vector<std::string> expected_lines(const Case& c) {
  std::vector<std::string> lines;
  std::set<std::string> idle{"init>GradientClipping", "init>SWA", "init>SeqLengthWarmup"};
  for (const Json& entry : c.params["algorithms"].array()) {
    if (entry[0].string() == "Alibi" && make_alibi(entry[1]).train_sequence_length_scaling == 1) {
      idle.insert("after_dataloader>Alibi");
    }
  }
  for (const Json& line : c.expect["trace"].array()) {
    const std::string& text = line.string();
    if (!idle.contains(text.substr(0, text.find('#')))) {
      lines.push_back(text);
    }
  }
  std::erase_if(lines, [](const std::string& line) {
    return line.starts_with("batch_start>EMA") || line.find("_checkpoint>EMA") != std::string::npos;
  });
  return lines;
}

std::string first_difference(const std::vector<std::string>& got,
                             const std::vector<std::string>& want) {
  std::size_t i = 0;
  while (i < got.size() && i < want.size() && got[i] == want[i]) {
    ++i;
  }
  const auto line = [&](const std::vector<std::string>& lines) {
    return i < lines.size() ? "\"" + lines[i] + "\"" : std::string("the end");
  };
  return i == got.size() && i == want.size()
             ? ""
             : "line " + std::to_string(i) + " is " + line(got) + ", expected " + line(want);
}

// The same from a loader with a list of transforms, for policies that change single images.
tutti::ImageLoader any_images(std::int64_t batches, std::int64_t size, std::int64_t classes) {
  const std::int64_t n = batches * size;
  return tutti::ImageLoader(at::randint(256, {n, 3, 16, 16}, at::kByte),
                            at::randint(classes, {n}, at::kLong), {.batch_size = size});
}

tutti::TrainerOptions trace_options(const Case& c, const std::string& save_folder) {
  const std::int64_t size = c.params["batch_size"].integer();
  const std::int64_t classes = c.params["classes"].integer();
  tutti::TrainerOptions options{
      .train = any_images(c.params["batches"].integer(), size, classes),
      .max_duration = tutti::Time::parse(c.params["max_duration"].string()),
      .eval_interval = tutti::Time::parse(c.params["eval_interval"].string()),
      .optimizer = tutti::DecoupledSGDW{.lr = 0.01},
      .device_train_microbatch_size = c.params["microbatch_size"].integer(),
      .device = "cpu",
      .seed = 1,
      .progress_bar = false};
  if (!c.params["model"].is_array()) {
    options.train = any_data(c, c.params["batches"].integer());
  }
  if (const std::int64_t batches = c.params["eval_batches"].integer(); batches > 0) {
    options.eval = {{"eval", any_data(c, batches)}};
  }
  if (const Json* interval = c.params.find("save_interval")) {
    options.save_folder = save_folder;
    options.save_interval = tutti::Time::parse(interval->string());
  }
  return options;
}

// The stated difference by which tutti goes on where the reference stops; null when there is none.
const Difference* difference_of(const Case& c) {
  const Json* raises = c.expect.find("raises");
  if (raises == nullptr) {
    return nullptr;
  }
  for (const Json& algorithm : c.params["algorithms"].array()) {
    const std::string& name = algorithm[0].string();
    if (name == "SeqLengthWarmup" && raises->string() == "ZeroDivisionError") {
      return &stated::short_warmup;
    }
    const Json* warmup = algorithm[1].find("drop_warmup");
    if (name == "StochasticDepth" && raises->string() == "TypeError" && warmup != nullptr &&
        warmup->is_string() && !warmup->string().ends_with("dur")) {
      return &stated::warmup_units;
    }
    const std::vector<std::string> lines = expected_lines(c);
    if (name == "GhostBatchNorm" && raises->string() == "ValueError" && !lines.empty() &&
        (lines.back().starts_with("eval_") || lines.back().starts_with("predict_"))) {
      return &stated::whole_batches;
    }
    const Json* tau = algorithm[1].find("tau");
    if (name == "GyroDropout" && raises->string() == "RuntimeError" &&
        c.params["batch_size"].integer() % (tau != nullptr ? tau->integer() : 16) != 0) {
      return &stated::any_batch;
    }
  }
  return nullptr;
}

void trace(const Case& c, Verdict& verdict) {
  expect_keys(
      c, {"algorithms", "data", "model", "batches", "batch_size", "microbatch_size", "max_duration",
          "eval_batches", "eval_interval", "classes", "calls", "save_interval"});
  if (const Difference* known = difference_of(c)) {
    verdict.differs(*known);
    return;
  }
  const TemporaryFolder folder;
  Algorithms algorithms;
  const auto made = [&] {
    need_algorithms(c.params["algorithms"]);
    algorithms = make_algorithms(c.params["algorithms"], tape_of(c));
    return make_trainer(trace_model(c), trace_options(c, folder.path().string()), algorithms);
  };
  std::unique_ptr<Trainer> trainer;
  Names who{"fit", "eval", "predict"};
  for (const Json& algorithm : c.params["algorithms"].array()) {
    who.push_back(algorithm[0].string());
  }
  const auto run = [&] {
    trainer = made();
    for (const Json& call : c.params["calls"].array()) {
      if (call.string() == "fit") {
        fit(*trainer);
      } else if (call.string() == "eval") {
        eval(*trainer);
      } else {
        predict(*trainer,
                any_data(c, std::max<std::int64_t>(c.params["eval_batches"].integer(), 1)));
      }
    }
  };
  if (!verdict.raises_as_reference(run, who)) {
    return;  // how far either comes before it raises may differ
  }
  const auto got = as_reference(trainer->get<tutti::Trace>().lines, algorithms);
  const std::string difference = first_difference(got, expected_lines(c));
  verdict.check(difference.empty(), difference);
}

}  // namespace

Handlers trace_handlers() {
  return {{"trace", trace}};
}

}  // namespace golden
