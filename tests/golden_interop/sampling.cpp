// The processors of scores: removed tokens exactly, what is left within 1e-5.
#include <limits>
#include <string>

#include <tutti/models/logits_processors.hpp>

#include "golden_interop/runner.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using golden_interop::Case;
using golden_interop::Json;

tutti::models::GenerationConfig config_of(const Json& pipeline) {
  tutti::models::GenerationConfig out{.do_sample = true, .top_k = 0};
  for (const auto& [name, value] : pipeline.object()) {
    if (name == "repetition_penalty") {
      out.repetition_penalty = value.number();
    } else if (name == "temperature") {
      out.temperature = value.number();
    } else if (name == "top_k") {
      out.top_k = value.integer();
    } else if (name == "top_p") {
      out.top_p = value.number();
    } else if (name == "min_p") {
      out.min_p = value.number();
    } else if (name != "order" && name != "left") {
      throw golden_interop::Unmapped("the pipeline has the option " + name);
    }
  }
  return out;
}

void run(const Case& c) {
  const golden_interop::Tensors io = c.io();
  const Json::Array& pipelines = c.json["pipelines"].array();
  c.check(!pipelines.empty(), "there are no pipelines");
  constexpr double removed = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    const at::Tensor got = tutti::functional::process_scores(io.at("scores"), io.at("input_ids"),
                                                             config_of(pipelines[i]));
    const std::string name = "processed." + std::to_string(i);
    const at::Tensor& want = io.at(name);
    c.check(got.eq(removed).equal(want.eq(removed)), name + ": other tokens are removed");
    const at::Tensor left = want.ne(removed);
    const at::Tensor apart = got.masked_select(left).sub(want.masked_select(left)).abs();
    c.number(name, apart.max().item<double>(), 0, 0, 1e-5);
  }
}

const bool registered = golden_interop::register_kind("sampling", run);

}  // namespace

}  // namespace UNITY_BUILD_UNIQUE_ID
