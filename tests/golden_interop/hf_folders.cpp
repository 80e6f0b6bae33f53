#include <algorithm>
#include <string>
#include <vector>

#include <tutti/core/batch.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/save_pretrained.hpp>

#include "golden_interop/runner.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Folders of save_pretrained(): read by one call, computed, written, and read again.

namespace {

using golden_interop::Case;
using namespace tutti::models;

std::vector<std::string> names(const golden_interop::Json& list) {
  std::vector<std::string> out;
  for (const auto& name : list.array()) {
    out.push_back(name.string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// What Python calls unexpected is what is left out with a note or silently; what is noted is
// unexpected there, too.
void check_report(const Case& c, const PretrainedReport& report) {
  const auto unexpected = names(c.json["unexpected"]);
  for (const std::string& name : unexpected) {
    c.check(has(report.left_out, name) || has(report.ignored, name), name + " was taken");
  }
  for (const std::string& name : report.left_out) {
    c.check(has(unexpected, name), name + " was left out");
  }
  std::vector<std::string> initialised = report.initialised;
  std::sort(initialised.begin(), initialised.end());
  c.check(initialised == names(c.json["missing"]), "other tensors were freshly initialised");
}

template <class M>
at::Tensor logits(M& net, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  net->eval();
  tutti::Batch batch(std::map<std::string, at::Tensor>{{"input_ids", ids}});
  return net->forward(batch).tensor();
}

template <class M>
void run_class(const Case& c) {
  const auto io = golden_interop::read_tensors(c.folder / "expected.io");
  PretrainedReport report;
  M net = from_pretrained<M>(c.folder.string(), {.allow_new_heads = true, .report = &report});
  check_report(c, report);
  c.close("logits", logits(net, io.at("input_ids")), io.at("logits"));

  const TemporaryFolder folder;
  const PretrainedConfig source = PretrainedConfig::read(c.folder.string());
  for (const std::uint64_t shard : {std::uint64_t{5'000'000'000}, std::uint64_t{10'000}}) {
    const std::string path = (folder / std::to_string(shard)).string();
    save_pretrained(net, path, {.max_shard_size = shard});
    M again = from_pretrained<M>(path);
    c.check(logits(again, io.at("input_ids")).equal(logits(net, io.at("input_ids"))),
            "the model computes otherwise after a round trip");
    const PretrainedConfig written = PretrainedConfig::read(path);
    for (const auto& [key, value] : source.values()) {
      const auto* found = written.find(key);
      c.check(key == "dtype" || key == "architectures" ||
                  (found != nullptr ? *found == value : value.is_null()),
              "config.json lost or changed " + key);
    }
  }
}

void run(const Case& c) {
  const std::string loaded_as = c.json["loaded_as"].string();
  if (loaded_as == "GPT2LMHeadModel") {
    run_class<GPT2LMHeadModel>(c);
  } else if (loaded_as == "BertForMaskedLM") {
    run_class<BertForMaskedLM>(c);
  } else if (loaded_as == "BertForSequenceClassification") {
    run_class<BertForSequenceClassification>(c);
  } else if (loaded_as == "LlamaForCausalLM" || loaded_as == "MistralForCausalLM" ||
             loaded_as == "Qwen2ForCausalLM" || loaded_as == "Qwen3ForCausalLM") {
    run_class<LlamaForCausalLM>(c);
  } else {
    throw golden_interop::Unmapped("no class is called " + loaded_as);
  }
}

const bool registered = golden_interop::register_kind("hf_folders", run);

}  // namespace

}  // namespace UNITY_BUILD_UNIQUE_ID
