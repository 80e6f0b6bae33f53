#include <tutti/models/bert.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <tutti/checkpoint/weight_files.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "models/language.hpp"
#include "nn/golden_model.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
namespace models = tutti::models;

models::BertOptions small() {
  return {.vocab_size = 13,
          .hidden_size = 16,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .intermediate_size = 24,
          .max_position_embeddings = 12};
}

static_assert(tutti::Model<models::BertForMaskedLMImpl>);
static_assert(tutti::Model<models::BertForSequenceClassificationImpl>);

}  // namespace

TEST_CASE("the logits of BERT are those of Hugging Face", "[models][bert][golden]") {
  for (const golden::Case& c : golden::cases("apply_alibi_bert")) {
    auto model = models::BertForMaskedLM(language::bert_options(c.params["config"]));
    language::load(*model, c.ins("state."));
    model->eval();
    const Batch batch{{"input_ids", c.in("input_ids")}, {"attention_mask", c.in("attention_mask")}};
    CHECK_GOLDEN(c, "logits_before", model->forward(batch).tensor());

    model->train();  // dropout's own path computes the probabilities one by one
    for (const auto& module : model->modules(false)) {
      if (auto* dropout = dynamic_cast<torch::nn::DropoutImpl*>(module.get())) {
        dropout->options.p(1e-300);
      }
    }
    CHECK_GOLDEN(c, "logits_before", model->forward(batch).tensor());
  }
}

TEST_CASE("names of BERT's parameters are Hugging Face's", "[models][bert]") {
  const auto model = models::BertForSequenceClassification(small(), 3);
  const auto names = model->named_parameters();
  for (const char* name :
       {"bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.1.attention.self.query.weight",
        "bert.encoder.layer.0.attention.output.LayerNorm.weight",
        "bert.encoder.layer.0.intermediate.dense.bias", "bert.encoder.layer.0.output.dense.weight",
        "bert.pooler.dense.weight", "classifier.bias"}) {
    INFO(name);
    CHECK(names.contains(name));
  }
  CHECK(names.size() == 5 + 2 * 16 + 2 + 2);
  const auto masked = models::BertForMaskedLM(small());
  CHECK(masked->named_parameters().contains("cls.predictions.transform.LayerNorm.weight"));
  CHECK_FALSE(masked->named_parameters().contains("bert.pooler.dense.weight"));
  CHECK(masked->bert->embeddings->word_embeddings->weight[0].eq(0).all().item<bool>());
  auto odd = small();
  odd.num_attention_heads = 5;
  CHECK_THROWS_AS(models::BertForMaskedLM(odd), c10::ValueError);
}

TEST_CASE("weights of BERT are drawn as Hugging Face draws them", "[models][bert]") {
  at::manual_seed(5);
  auto options = small();
  options.vocab_size = 200;
  options.hidden_size = options.intermediate_size = 64;
  options.initializer_range = 0.05;
  const auto check = [](const torch::nn::Module& model, const std::vector<std::string>& names) {
    const auto all = model.named_parameters();
    for (const std::string& name : names) {
      INFO(name);
      CHECK(std::abs(all[name].std().item<double>() - 0.05) < 0.005);
      CHECK(std::abs(all[name].mean().item<double>()) < 0.01);
    }
    const at::Tensor table = all["bert.embeddings.word_embeddings.weight"];
    CHECK(table[0].eq(0).all().item<bool>());
    CHECK(std::abs(table.slice(0, 1).std().item<double>() - 0.05) < 0.005);
    for (const auto& item : all) {
      if (item.key().ends_with("bias")) {
        INFO(item.key());
        CHECK(item.value().eq(0).all().item<bool>());
      }
    }
  };
  check(*models::BertForSequenceClassification(options, 100),
        {"bert.embeddings.position_embeddings.weight",
         "bert.encoder.layer.1.attention.self.query.weight",
         "bert.encoder.layer.0.output.dense.weight", "bert.pooler.dense.weight",
         "classifier.weight"});
  check(*models::BertForMaskedLM(options), {"cls.predictions.transform.dense.weight"});
}

TEST_CASE("BERT does not see padding", "[models][bert][law]") {
  at::manual_seed(1);
  auto model = models::BertForMaskedLM(small());
  model->eval();
  const at::Tensor ids = at::randint(1, 13, {2, 8}, at::kLong);
  at::Tensor mask = at::ones({2, 8}, at::kLong);
  mask.slice(1, 5).zero_();
  const auto logits = [&](const at::Tensor& of, const at::Tensor& seen) {
    return model->forward(Batch{{"input_ids", of}, {"attention_mask", seen}}).tensor();
  };
  const at::Tensor short_ids = ids.slice(1, 0, 5);
  CHECK(logits(ids, mask).slice(1, 0, 5).allclose(model->forward(short_ids).tensor(), 1e-4, 1e-5));
  CHECK(logits(ids, at::zeros({2, 8})).isfinite().all().item<bool>());
  Batch segments{{"input_ids", ids}, {"token_type_ids", at::ones({2, 8}, at::kLong)}};
  CHECK_FALSE(model->forward(segments).tensor().allclose(model->forward(ids).tensor()));
  CHECK_THROWS_WITH(model->forward(at::zeros({1, 13}, at::kLong)),
                    ContainsSubstring("length 13 and the model 12 positions"));
}

TEST_CASE("BERT learns to fill in tokens, and the table of tokens learns with it",
          "[models][bert][trainer]") {
  at::manual_seed(3);
  auto options = small();
  options.hidden_dropout_prob = options.attention_probs_dropout_prob = 0;
  auto model = models::BertForMaskedLM(options);
  auto data = language::counting(6, 12);
  for (Batch& batch : data) {  // token 12 hides one place
    batch.at("labels") = at::full_like(batch.at("labels"), -100);
    batch.at("labels").select(1, 2).copy_(batch.at("input_ids").select(1, 2));
    batch.at("input_ids").select(1, 2).fill_(12);
  }
  tutti::Trainer<> trainer(model.ptr(),
                           tutti::TrainerOptions{.train = data,
                                                 .max_duration = "40ep",
                                                 .optimizer = tutti::DecoupledAdamW{.lr = 1e-2},
                                                 .device = "cpu",
                                                 .seed = 3,
                                                 .progress_bar = false});
  const at::Tensor table = model->bert->embeddings->word_embeddings->weight.detach().clone();
  trainer.fit();
  CHECK(trainer.state().train_metric_values.at("MaskedAccuracy") == 1.0);
  CHECK_FALSE(model->bert->embeddings->word_embeddings->weight.equal(table));

  model->eval();
  const auto copy = std::dynamic_pointer_cast<models::BertForMaskedLMImpl>(model->clone());
  const at::Tensor ids = at::arange(8).view({1, 8});
  CHECK(copy->forward(ids).tensor().equal(model->forward(ids).tensor()));

  model->cls->predictions->bias.set_requires_grad(false);
  const auto frozen = std::dynamic_pointer_cast<models::BertForMaskedLMImpl>(model->clone());
  CHECK_FALSE(frozen->cls->predictions->bias.requires_grad());
  CHECK(frozen->bert->embeddings->word_embeddings->weight.requires_grad());
}

TEST_CASE("BERT classifies sequences and gives them numbers", "[models][bert]") {
  at::manual_seed(4);
  auto classes = models::BertForSequenceClassification(small(), 3);
  classes->eval();
  const at::Tensor ids = at::randint(13, {4, 6}, at::kLong);
  const Batch batch{{"input_ids", ids}, {"labels", at::tensor({0, 2, 1, 1}, at::kLong)}};
  const auto outputs = classes->forward(batch);
  CHECK(outputs.tensor().sizes() == at::IntArrayRef{4, 3});
  CHECK(classes->loss(outputs, batch)
            .total()
            .allclose(at::cross_entropy_loss(outputs.tensor(), batch.targets())));
  CHECK(classes->metrics(true).size() == 2);
  CHECK(classes->sample_losses(outputs, batch)
            .mean()
            .allclose(classes->loss(outputs, batch).total()));
  const Batch soft{{"input_ids", ids}, {"labels", at::one_hot(batch.targets(), 3).to(at::kFloat)}};
  CHECK(classes->loss(outputs, soft).total().allclose(classes->loss(outputs, batch).total()));

  auto numbers = models::BertForSequenceClassification(small(), 1);
  const Batch scored{{"input_ids", ids}, {"labels", at::tensor({0.5, 1.0, -1.0, 2.0})}};
  const auto y = numbers->forward(scored);
  CHECK(numbers->loss(y, scored).total().allclose(
      (y.tensor().flatten() - scored.targets().to(at::kFloat)).pow(2).mean()));
  for (const at::Tensor& labels : {scored.targets(), scored.targets().unsqueeze(1)}) {
    const Batch given{{"input_ids", ids}, {"labels", labels}};
    const tutti::Metrics metrics = numbers->metrics(false);
    REQUIRE(metrics.size() == 1);
    const auto error = metrics[0]->clone();
    CHECK(error->name() == "MeanSquaredError");
    error->reset();
    numbers->update_metric(given, y, *error);
    CHECK(error->compute() == Approx(numbers->loss(y, given).total().item<double>()));
  }
}

TEST_CASE("surgery reaches the layers of BERT", "[models][bert][surgery]") {
  namespace nn = tutti::nn;
  auto model = models::BertForMaskedLM(small());
  CHECK(tutti::surgery::count<nn::Dropout>(*model) == 1 + 3 * 2);
  CHECK(tutti::surgery::count<nn::LayerNorm>(*model) == 1 + 2 * 2 + 1);
  CHECK(tutti::surgery::count<nn::Linear>(*model) == 6 * 2 + 1);
  CHECK(tutti::surgery::count<nn::Embedding>(*model) == 3);
}

TEST_CASE("activation checkpointing of BERT changes no gradient", "[models][bert][law]") {
  at::manual_seed(10);
  auto model = models::BertForMaskedLM(small());
  const at::Tensor ids = at::randint(13, {2, 8}, at::kLong);
  at::Tensor mask = at::ones_like(ids);
  mask[1].slice(0, 5).zero_();
  const Batch batch{{"input_ids", ids}, {"attention_mask", mask}, {"labels", ids}};
  CHECK(language::same_gradients_checkpointed(*model, batch));
}

TEST_CASE("the options of BERT survive config.json, and what it cannot compute is refused",
          "[models][bert]") {
  auto options = small();
  options.classifier_dropout = 0.25;
  options.hidden_act = tutti::nn::Activation::gelu_new;
  auto model = models::BertForSequenceClassification(options, 3);
  CHECK(model->dropout->options.p() == 0.25);
  const models::PretrainedConfig config = model->config();
  CHECK(config.num_labels() == 3);
  auto again = models::BertForSequenceClassificationImpl::from_config(config);
  CHECK(again->config() == config);
  CHECK(again->num_labels == 3);

  const auto config_of = [](const std::string& text) {
    const tutti::detail::Json json = tutti::detail::parse_json(text);
    return models::PretrainedConfig(json.object());
  };
  const auto options_of = [&](const std::string& text) {
    return models::BertForMaskedLMImpl::options_from(config_of(text));
  };
  CHECK(options_of("{}").layer_norm_eps == 1e-12);
  CHECK_THROWS_WITH(options_of(R"({"is_decoder": true})"), ContainsSubstring("is_decoder is true"));
  CHECK_THROWS_WITH(options_of(R"({"position_embedding_type": "relative_key"})"),
                    ContainsSubstring("relative_key"));
  CHECK_THROWS_WITH(models::BertForSequenceClassificationImpl::options_from(
                        config_of(R"({"problem_type": "multi_label_classification"})")),
                    ContainsSubstring("multi_label_classification"));
}

TEST_CASE("a BERT that is not tied has a matrix of its own for masked tokens", "[models][bert]") {
  models::PretrainedConfig config = models::BertForMaskedLM(small())->config();
  config.set("tie_word_embeddings", false);
  const auto options = models::BertForMaskedLMImpl::options_from(config);
  auto model = models::BertForMaskedLM(options);
  CHECK_FALSE(model->config().flag("tie_word_embeddings", true));
  model->eval();
  models::BertPredictionsImpl& head = *model->cls->predictions;
  {
    const torch::NoGradGuard no_grad;
    head.bias.fill_(7);  // which then counts nothing
    head.decoder->bias.normal_();
  }
  const at::Tensor ids = at::randint(13, {2, 5}, at::kLong);
  const at::Tensor logits = model->forward(ids).tensor();
  CHECK(logits.equal(head.decoder(head.transform(model->bert(Batch(ids))))));
  model->loss(model->forward(ids), Batch{{"input_ids", ids}, {"labels", ids}}).total().backward();
  CHECK(head.decoder->weight.grad().abs().sum().item<double>() > 0);

  const TemporaryFolder folder;
  models::save_pretrained(model, (folder / "bert").string());
  auto again = models::from_pretrained<models::BertForMaskedLM>((folder / "bert").string());
  again->eval();
  CHECK(again->forward(ids).tensor().equal(logits));
  const auto files = tutti::checkpoint::WeightFiles::open(folder / "bert");
  for (const char* name : {"decoder.weight", "decoder.bias", "bias"}) {
    CHECK(files.find("cls.predictions." + std::string(name)) != nullptr);
  }
}

TEST_CASE("BERT takes positions that are given", "[models][bert]") {
  at::manual_seed(12);
  auto model = models::BertForMaskedLM(small());
  model->eval();
  const at::Tensor ids = at::randint(13, {2, 5}, at::kLong);
  const Batch counted{{"input_ids", ids}, {"position_ids", at::arange(5).expand({2, 5})}};
  const at::Tensor plain = model->forward(ids).tensor();
  CHECK(model->forward(counted).tensor().allclose(plain, 1e-6, 1e-6));
  const Batch shifted{{"input_ids", ids}, {"position_ids", at::arange(2, 7).expand({2, 5})}};
  CHECK_FALSE(model->forward(shifted).tensor().allclose(plain, 1e-4, 1e-5));
}

TEST_CASE("BERT reads packed documents as it reads them by themselves", "[models][bert][law]") {
  at::manual_seed(13);
  auto options = small();
  options.max_position_embeddings = 14;
  auto model = models::BertForMaskedLM(options);
  model->eval();
  const language::PackedDocuments documents = language::packed_documents(13);
  std::vector<at::Tensor> alone;
  for (const Batch& document : documents.alone) {
    alone.push_back(model->forward(document.at("input_ids")).tensor()[0]);
  }
  Batch packed = documents.packed;
  const at::Tensor seen = packed.at("attention_mask").ne(0);
  CHECK(model->forward(packed).tensor().index({seen}).allclose(at::cat(alone), 1e-4, 1e-5));
  packed.at("sequence_id").zero_();
  CHECK_FALSE(model->forward(packed).tensor().index({seen}).allclose(at::cat(alone), 1e-4, 1e-5));
}

TEST_CASE("BERT reads packed rows longer than its table whose positions are in it",
          "[models][bert][law]") {
  at::manual_seed(14);
  auto options = small();
  options.max_position_embeddings = 8;  // the rows have 14 tokens, documents up to 7
  auto model = models::BertForMaskedLM(options);
  model->eval();
  const Batch packed = language::packed_documents(13).packed;
  Batch counted;
  for (const auto& [name, tensor] : packed) {
    if (name != "position_ids") {
      counted[name] = tensor.clone();
    }
  }
  const at::Tensor seen = packed.at("attention_mask").ne(0);
  CHECK(model->forward(counted).tensor().index({seen}).allclose(
      model->forward(packed).tensor().index({seen}), 1e-5, 1e-6));
  counted.at("sequence_id").zero_();
  CHECK_THROWS_WITH(model->forward(counted),
                    ContainsSubstring("the sequences have length 14 and the model 8 positions"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
