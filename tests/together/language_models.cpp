#include "together/text.hpp"

#include <concepts>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/ghost_batchnorm.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/lora.hpp>
#include <tutti/algorithms/low_precision_groupnorm.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/selective_backprop.hpp>
#include <tutti/algorithms/squeeze_excite.hpp>
#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/algorithms/weight_standardization.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

// Which algorithm goes with which language model: each one that compiles is run, and the table of
// docs/models.md is what came out.
namespace {

using namespace tutti;

using Trained =
    together::Pack<ALiBi, EMA, Factorize, GatedLinearUnits, GradientClipping, GyroDropout,
                   LayerFreezing, LowPrecisionLayerNorm, SAM, SeqLengthWarmup>;
// These and those above exclude one another in a recipe.
using TrainedToo = together::Pack<SelectiveBackprop, SWA>;

AnyModel gpt2() {
  at::manual_seed(5);
  return models::GPT2LMHeadModel(models::GPT2Options{
                                     .vocab_size = 32,
                                     .n_positions = 16,
                                     .n_embd = 32,
                                     .n_layer = 2,
                                     .n_head = 2,
                                 })
      .ptr();
}

AnyModel llama() {
  at::manual_seed(5);
  return models::LlamaForCausalLM(models::LlamaOptions{
                                      .vocab_size = 32,
                                      .hidden_size = 32,
                                      .intermediate_size = 48,
                                      .num_hidden_layers = 2,
                                      .num_attention_heads = 4,
                                      .num_key_value_heads = 2,
                                      .max_position_embeddings = 16,
                                      .attention_dropout = 0.1,
                                  })
      .ptr();
}

struct Family {
  std::string_view name;
  AnyModel (*make)();
};
constexpr std::array families{
    Family{"GPT-2", gpt2},
    Family{"BERT", [] { return AnyModel(together::bert(at::kFloat, 0.1)); }},
    Family{"Llama", llama},
};

constexpr std::string_view yes = "yes";
constexpr std::string_view refused = "does not compile";
constexpr std::string_view no_layers = "no layers";

// `A` may train the models of each family, by what their types say.
template <class A>
constexpr std::array compiles{Supports<A, models::GPT2LMHeadModelImpl>,
                              Supports<A, models::BertForMaskedLMImpl>,
                              Supports<A, models::LlamaForCausalLMImpl>};

// What a run of a few steps comes to.
template <class Pack>
std::string_view run(const AnyModel& model, std::size_t algorithm) {
  TrainerOptions options = together::text_options(2, 2, 0);
  if (Pack::names[algorithm] == LowPrecisionLayerNorm::name) {
    options.precision = Precision::amp_bf16;  // it has no effect in another
  }
  const at::Tensor before = tiny::flat(*model.module());
  try {
    const at::Tensor after = Pack::weights(model, options, algorithm).cpu();
    CHECK(after.isfinite().all().item<bool>());
    CHECK((after.numel() != before.numel() || !after.equal(before)));
    return yes;
  } catch (const c10::Error& error) {
    INFO(error.what_without_backtrace());
    CHECK(std::string_view(error.what_without_backtrace()).find(Pack::names[algorithm]) == 0);
    return no_layers;
  }
}

// What surgery alone comes to.
template <class F>
std::string_view operate(const AnyModel& model, F&& surgery) {
  try {
    surgery(*model.module());
    return yes;
  } catch (const c10::Error&) {
    return no_layers;
  }
}

class Table {
 public:
  Table() {
    text_ = "| algorithm |";
    std::string line = "|---|";
    for (const Family& family : families) {
      text_ += " " + std::string(family.name) + " |";
      line += "---|";
    }
    text_ += "\n" + line + "\n";
  }

  // try_it: (family) -> what it comes to, where it compiles.
  template <class A, class F>
  void row(F&& try_it) {
    INFO(name_of<A>());
    rows_[std::string(name_of<A>())] = [&] {
      std::string cells;
      for (std::size_t i = 0; i < families.size(); ++i) {
        cells += " " + std::string(compiles<A>[i] ? try_it(families[i]) : refused) + " |";
      }
      return cells;
    }();
  }

  [[nodiscard]] std::string text() const {
    std::string out = text_;
    for (const auto& [name, cells] : rows_) {
      out += "| " + name + " |" + cells + "\n";
    }
    return out;
  }

 private:
  std::string text_;
  std::map<std::string, std::string> rows_;
};

template <class Pack>
struct RowsOf;
template <class... As>
struct RowsOf<together::Pack<As...>> {
  static void add(Table& table) {
    std::size_t index = 0;
    (
        [&] {
          const std::size_t one = index++;
          table.row<As>(
              [&](const Family& family) { return run<together::Pack<As...>>(family.make(), one); });
        }(),
        ...);
  }
};

template <class A>
void refused_row(Table& table) {
  table.row<A>([](const Family&) { return yes; });
}

std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t begin = text.find(from);
  const std::size_t end = text.find(to);
  return begin == std::string::npos || end == std::string::npos
             ? ""
             : text.substr(begin + from.size(), end - begin - from.size());
}

}  // namespace

TEST_CASE("the table of docs/models.md says which algorithm goes with which language model",
          "[together][models]") {
  Table table;
  RowsOf<Trained>::add(table);
  RowsOf<TrainedToo>::add(table);
  const auto surgery = [&]<class A>(std::type_identity<A>, auto&& apply) {
    table.row<A>([&](const Family& family) { return operate(family.make(), apply); });
  };
  using std::type_identity;
  surgery(type_identity<BlurPool>(),
          [](auto& model) { functional::apply_blurpool(model, {.min_channels = 1}); });
  surgery(type_identity<GhostBatchNorm>(),
          [](auto& model) { functional::apply_ghost_batchnorm(model); });
  surgery(type_identity<SqueezeExcite>(), [](auto& model) {
    functional::apply_squeeze_excite(model, {.latent_channels = 4, .min_channels = 1});
  });
  surgery(type_identity<LoRA>(),
          [](auto& model) { functional::apply_lora(model, {.target_modules = "all-linear"}); });
  surgery(type_identity<WeightStandardization>(),
          [](auto& model) { functional::apply_weight_standardization(model); });
  surgery(type_identity<LowPrecisionGroupNorm>(), [](auto& model) {
    functional::apply_low_precision_groupnorm(model, Precision::amp_bf16, {},
                                              surgery::IfNone::error);
  });
  refused_row<ColOut>(table);
  refused_row<CutMix>(table);
  refused_row<CutOut>(table);
  refused_row<LabelSmoothing>(table);
  refused_row<MixUp>(table);
  refused_row<ProgressiveResizing>(table);
  refused_row<StochasticDepth>(table);

  std::ifstream file(TUTTI_SOURCE_DIR "/docs/models.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  const std::string written =
      between(page, "<!-- algorithms of language models -->\n", "<!-- end -->");
  INFO("docs/models.md should have, between its two comments:\n" << table.text());
  CHECK(written == table.text());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
