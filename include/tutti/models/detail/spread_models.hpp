// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/detail/spread_layers.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/vit.hpp>
#include <tutti/nn/attention.hpp>

/// What each architecture spreads over ranks.
namespace tutti::models::detail {

// Fills the slots of a model's layers, and cuts their parameters.
class Spreader {
 public:
  explicit Spreader(SpreadPtr spread) : spread_(std::move(spread)) {}

  [[nodiscard]] std::int64_t ranks() const { return spread_->group()->size(); }
  [[nodiscard]] bool along_sequence() const {
    return spread_->sequence == dist::SequenceParallel::yes;
  }

  // tensors: of how many the weight is made. pairs: heads of which the output is made; below the
  // ranks, several of them have the same one.
  template <class Layer>
  void column(Layer& layer, std::int64_t tensors = 1, std::int64_t pairs = 0) {
    const auto copies = static_cast<int>(pairs > 0 && pairs < ranks() ? ranks() / pairs : 1);
    const auto& base = plain(*layer);
    cut(base.weight, output_dim(base), tensors, copies);
    cut(base.bias, 0, tensors, copies);
    fill(*layer, std::make_shared<ColumnLinearImpl<std::remove_cvref_t<decltype(base)>>>(
                     spread_, base, same_part(copies)));
  }

  template <class Layer>
  void row(Layer& layer) {
    const auto& base = plain(*layer);
    cut(base.weight, 1 - output_dim(base));
    fill(*layer,
         std::make_shared<RowLinearImpl<std::remove_cvref_t<decltype(base)>>>(spread_, base));
  }

  void table(nn::Embedding& layer, bool cuts) {
    cut(layer->weight, 0);
    fill(*layer, std::make_shared<SpreadEmbeddingImpl>(spread_, *layer, cuts));
  }

  void norm(nn::LayerNorm& layer, SpreadNormHow how = {}) { norm_of(layer, how); }
  void norm(nn::RMSNorm& layer, SpreadNormHow how = {}) { norm_of(layer, how); }

  void dropout(nn::DropoutImpl& layer, SpreadDropoutImpl::Place place) {
    using Place = SpreadDropoutImpl::Place;
    const bool drops = layer.options.p() > 0;
    if ((place == Place::inside && drops) ||
        (place == Place::between && drops && along_sequence()) ||
        (place == Place::first && along_sequence())) {
      fill(layer, std::make_shared<SpreadDropoutImpl>(spread_, layer, place));
    }
  }
  void dropout(nn::Dropout& layer, SpreadDropoutImpl::Place place) {
    if (layer) {
      dropout(*layer, place);
    }
  }

  void cut(const at::Tensor& parameter, std::int64_t dim, std::int64_t tensors = 1,
           int copies = 1) const {
    if (parameter.defined()) {
      spread_->model->cut(
          {.parameter = parameter, .dim = dim, .tensors = tensors, .copies = copies});
    }
  }

  [[nodiscard]] std::shared_ptr<SpreadHead> head(std::int64_t vocabulary) const {
    return std::make_shared<SpreadHead>(spread_, vocabulary);
  }

 private:
  static const torch::nn::LinearImpl& plain(const torch::nn::LinearImpl& layer) { return layer; }
  static const nn::PlainTransposedLinearImpl& plain(const nn::PlainTransposedLinearImpl& layer) {
    return layer;
  }
  static std::int64_t output_dim(const torch::nn::LinearImpl&) { return 0; }
  static std::int64_t output_dim(const nn::PlainTransposedLinearImpl&) { return 1; }

  template <class Layer>
  void norm_of(Layer& layer, SpreadNormHow how) {
    using Plain = typename Layer::Impl::Plain;
    if (along_sequence() || how.of_heads || how.enters) {
      fill(*layer, std::make_shared<SpreadNormImpl<Plain>>(spread_, *layer, how));
    }
  }

  template <class Layer, class StandIn>
  static void fill(Layer& layer, std::shared_ptr<StandIn> stand_in) {
    layer.slot() = nn::Slot(std::move(stand_in));
  }

  // The ranks that have the same part as this one; null: no others do.
  std::shared_ptr<dist::Communicator> same_part(int copies) {
    if (copies == 1) {
      return nullptr;
    }
    if (!copies_) {
      std::vector<int> same;
      const int first = spread_->group()->rank() / copies * copies;
      for (int rank = first; rank < first + copies; ++rank) {
        same.push_back(rank);
      }
      copies_ = static_cast<std::size_t>(copies) == static_cast<std::size_t>(ranks())
                    ? spread_->group()
                    : spread_->group()->subgroup(same);
    }
    return copies_;
  }

  SpreadPtr spread_;
  std::shared_ptr<dist::Communicator> copies_;
};

// What is wanted of a model.
struct SpreadWish {
  std::int64_t ranks = 1;
  bool along_sequence = false;
};

// Throws c10::Error (ValueError) where the ranks do not divide what they are to share.
void check_divides(std::string_view model, std::string_view what, std::int64_t size,
                   std::int64_t ranks);
void check_vocabulary(std::string_view model, std::int64_t size, std::int64_t ranks);
// Refuses layers that something else stands in for.
void check_slots(const torch::nn::Module& model);

void check_spread(const GPT2LMHeadModelImpl& model, const SpreadWish& wish);
void spread(GPT2LMHeadModelImpl& model, Spreader& spreader);
void check_spread(const LlamaForCausalLMImpl& model, const SpreadWish& wish);
void spread(LlamaForCausalLMImpl& model, Spreader& spreader);
void check_spread(const BertForMaskedLMImpl& model, const SpreadWish& wish);
void spread(BertForMaskedLMImpl& model, Spreader& spreader);
void check_spread(const BertForSequenceClassificationImpl& model, const SpreadWish& wish);
void spread(BertForSequenceClassificationImpl& model, Spreader& spreader);
void check_spread(const VisionTransformerImpl& model, const SpreadWish& wish);
void spread(VisionTransformerImpl& model, Spreader& spreader);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models::detail {

TUTTI_INLINE void check_divides(std::string_view model, std::string_view what, std::int64_t size,
                                std::int64_t ranks) {
  TUTTI_CHECK_VALUE(size % ranks == 0, "tensor_parallel: the ", model, " has ", what, " ", size,
                    ", which is to be shared by ", ranks,
                    " ranks; expected a degree that divides it");
}

TUTTI_INLINE void check_vocabulary(std::string_view model, std::int64_t size, std::int64_t ranks) {
  const std::int64_t rows = (size + ranks - 1) / ranks;
  TUTTI_CHECK_VALUE(rows * (ranks - 1) < size, "tensor_parallel: the ", model, " has vocab_size ",
                    size, ", which is to be shared by ", ranks,
                    " ranks, so that the last one would have no token; expected fewer ranks");
}

TUTTI_INLINE void check_slots(const torch::nn::Module& model) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    auto* const layer = dynamic_cast<nn::Slotted*>(item.value().get());
    const bool filled = layer != nullptr && layer->slot();
    TUTTI_CHECK(
        !filled || dynamic_cast<dist::SpreadLayer*>(layer->slot().module().get()) == nullptr,
        "tensor_parallel: the model is spread over ranks already");
    TUTTI_CHECK(!filled, "tensor_parallel: another module stands in for the layer '", item.key(),
                "'; take it out first");
    const bool replaced = dynamic_cast<nn::Substitute*>(item.value().get()) != nullptr;
    TUTTI_CHECK(!replaced, "tensor_parallel: '", item.key(), "' is ", item.value()->name(),
                ", which stands for a layer of the model and which ranks cannot share; leave out "
                "that surgery");
    if (const auto* attention = dynamic_cast<nn::PositionBiased*>(item.value().get())) {
      TUTTI_CHECK(!attention->position_bias(), "tensor_parallel: '", item.key(),
                  "' has a bias by position (ALiBi), which is of all heads; leave out one of the "
                  "two");
    }
  }
}

TUTTI_INLINE void check_spread(const GPT2LMHeadModelImpl& model, const SpreadWish& wish) {
  const GPT2Options& options = model.options();
  const std::int64_t inner = options.n_inner > 0 ? options.n_inner : 4 * options.n_embd;
  check_divides("GPT-2", "n_head", options.n_head, wish.ranks);
  check_divides("GPT-2", "n_inner", inner, wish.ranks);
  check_vocabulary("GPT-2", options.vocab_size, wish.ranks);
}

TUTTI_INLINE void spread(GPT2LMHeadModelImpl& model, Spreader& spreader) {
  using Place = SpreadDropoutImpl::Place;
  GPT2ModelImpl& body = *model.transformer;
  spreader.table(body.wte, /*cuts=*/false);
  if (model.lm_head) {
    spreader.cut(model.lm_head->weight, 0);
  }
  spreader.dropout(body.drop, Place::first);
  for (std::size_t i = 0; i < body.h->size(); ++i) {
    GPT2BlockImpl& block = body.block(i);
    spreader.norm(block.ln_1);
    spreader.column(block.attn->c_attn, /*tensors=*/3);
    block.attn->take_share(spreader.ranks());
    spreader.dropout(block.attn->attn_dropout, Place::inside);
    spreader.row(block.attn->c_proj);
    spreader.dropout(block.attn->resid_dropout, Place::between);
    spreader.norm(block.ln_2);
    spreader.column(block.mlp->c_fc);
    spreader.row(block.mlp->c_proj);
    spreader.dropout(block.mlp->dropout, Place::between);
  }
  spreader.norm(body.ln_f, {.joins = true});
  model.spread_tokens(spreader.head(model.options().vocab_size));
}

TUTTI_INLINE void check_spread(const LlamaForCausalLMImpl& model, const SpreadWish& wish) {
  const LlamaOptions& options = model.options();
  check_divides("Llama", "num_attention_heads", options.num_attention_heads, wish.ranks);
  const std::int64_t pairs = options.key_value_heads();
  if (wish.ranks % pairs != 0) {  // else several ranks have the same one
    check_divides("Llama", "num_key_value_heads", pairs, wish.ranks);
  }
  check_divides("Llama", "intermediate_size", options.intermediate_size, wish.ranks);
  check_vocabulary("Llama", options.vocab_size, wish.ranks);
}

TUTTI_INLINE void spread(LlamaForCausalLMImpl& model, Spreader& spreader) {
  using Place = SpreadDropoutImpl::Place;
  LlamaModelImpl& body = *model.model;
  const std::int64_t pairs = model.options().key_value_heads();
  spreader.table(body.embed_tokens, /*cuts=*/true);
  if (model.lm_head) {
    spreader.cut(model.lm_head->weight, 0);
  }
  for (std::size_t i = 0; i < body.layers->size(); ++i) {
    LlamaDecoderLayerImpl& layer = body.layer(i);
    LlamaAttentionImpl& attention = *layer.self_attn;
    spreader.norm(layer.input_layernorm);
    spreader.column(attention.q_proj);
    spreader.column(attention.k_proj, 1, pairs);
    spreader.column(attention.v_proj, 1, pairs);
    if (attention.q_norm) {
      spreader.norm(attention.q_norm, {.of_heads = true});
      spreader.norm(attention.k_norm, {.of_heads = true});
    }
    attention.take_share(spreader.ranks());
    spreader.dropout(attention.dropout, Place::inside);
    spreader.row(attention.o_proj);
    spreader.norm(layer.post_attention_layernorm);
    spreader.column(layer.mlp->gate_proj);
    spreader.column(layer.mlp->up_proj);
    spreader.row(layer.mlp->down_proj);
  }
  spreader.norm(body.norm, {.joins = true});
  model.spread_tokens(spreader.head(model.options().vocab_size));
}

TUTTI_INLINE void check_bert(const BertModelImpl& bert, const BertOptions& options,
                             const SpreadWish& wish) {
  check_divides("BERT", "num_attention_heads", options.num_attention_heads, wish.ranks);
  check_divides("BERT", "intermediate_size", options.intermediate_size, wish.ranks);
  check_vocabulary("BERT", options.vocab_size, wish.ranks);
  TUTTI_CHECK_VALUE(
      !wish.along_sequence || options.num_hidden_layers > 0,
      "tensor_parallel: the BERT has no layers, between which sequences could be cut");
  for (const auto& layer : *bert.encoder->layer) {
    TUTTI_CHECK(layer->as<BertLayerImpl>()->intermediate,
                "tensor_parallel: the BERT has gated layers (GatedLinearUnits), which ranks cannot "
                "share; leave them out");
  }
}

TUTTI_INLINE void spread_bert(BertModelImpl& bert, Spreader& spreader) {
  using Place = SpreadDropoutImpl::Place;
  spreader.table(bert.embeddings->word_embeddings, /*cuts=*/false);
  spreader.dropout(bert.embeddings->dropout, Place::first);
  torch::nn::ModuleListImpl& layers = *bert.encoder->layer;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    BertLayerImpl& layer = layers.at<BertLayerImpl>(i);
    BertSelfAttentionImpl& attention = *layer.attention->self;
    spreader.column(attention.query);
    spreader.column(attention.key);
    spreader.column(attention.value);
    attention.take_share(spreader.ranks());
    spreader.dropout(attention.dropout, Place::inside);
    BertResidualImpl& output = *layer.attention->output;
    spreader.row(output.dense);
    spreader.dropout(output.dropout, Place::between);
    spreader.norm(output.layer_norm);
    spreader.column(layer.intermediate->dense);
    spreader.row(layer.output->dense);
    spreader.dropout(layer.output->dropout, Place::between);
    spreader.norm(layer.output->layer_norm, {.joins = i + 1 == layers.size()});
  }
}

TUTTI_INLINE void check_spread(const BertForMaskedLMImpl& model, const SpreadWish& wish) {
  check_bert(*model.bert, model.options(), wish);
}

TUTTI_INLINE void spread(BertForMaskedLMImpl& model, Spreader& spreader) {
  spread_bert(*model.bert, spreader);
  BertPredictionsImpl& head = *model.cls->predictions;
  if (head.decoder) {
    spreader.cut(head.decoder->weight, 0);
    spreader.cut(head.decoder->bias, 0);
  } else {
    spreader.cut(head.bias, 0);
  }
  model.spread_tokens(spreader.head(model.options().vocab_size));
}

TUTTI_INLINE void check_spread(const BertForSequenceClassificationImpl& model,
                               const SpreadWish& wish) {
  check_bert(*model.bert, model.options(), wish);
}

TUTTI_INLINE void spread(BertForSequenceClassificationImpl& model, Spreader& spreader) {
  spread_bert(*model.bert, spreader);
}

TUTTI_INLINE void check_spread(const VisionTransformerImpl& model, const SpreadWish& wish) {
  const VisionTransformerOptions& options = model.options();
  check_divides("vision transformer", "num_heads", options.num_heads, wish.ranks);
  check_divides("vision transformer", "mlp_dim", options.mlp_dim, wish.ranks);
  if (wish.along_sequence) {
    const std::int64_t tokens = model.encoder->pos_embedding.size(1);
    TUTTI_CHECK_VALUE(tokens % wish.ranks == 0, "tensor_parallel: the vision transformer reads ",
                      tokens, " tokens, which sequence parallel is to cut over ", wish.ranks,
                      " ranks; expected a degree that divides them (without class_token there is "
                      "one less), or SequenceParallel::no");
    TUTTI_CHECK_VALUE(model.encoder->ln && options.init_values == 0,
                      "tensor_parallel: sequence parallel is for vision transformers without "
                      "fc_norm and LayerScale (init_values); take SequenceParallel::no");
  }
}

TUTTI_INLINE void spread(VisionTransformerImpl& model, Spreader& spreader) {
  using Place = SpreadDropoutImpl::Place;
  VitEncoderImpl& encoder = *model.encoder;
  spreader.dropout(encoder.dropout, Place::first);
  for (const auto& module : encoder.layers->children()) {
    VitBlockImpl& block = *module->as<VitBlockImpl>();
    VitAttentionImpl& attention = *block.self_attention;
    spreader.norm(block.ln_1, {.enters = true});
    spreader.cut(attention.in_proj_weight, 0, 3);
    spreader.cut(attention.in_proj_bias, 0, 3);
    attention.take_share(spreader.ranks());
    spreader.dropout(attention.dropout, Place::inside);
    spreader.row(attention.out_proj);
    spreader.dropout(block.dropout, Place::between);
    spreader.norm(block.ln_2);
    const auto layers = block.mlp->children();  // up, nonlinearity, dropout, down, dropout
    nn::Linear up(std::dynamic_pointer_cast<nn::LinearImpl>(layers[0]));
    nn::Linear down(std::dynamic_pointer_cast<nn::LinearImpl>(layers[3]));
    spreader.column(up);
    spreader.dropout(dynamic_cast<nn::DropoutImpl&>(*layers[2]), Place::inside);
    spreader.row(down);
    spreader.dropout(dynamic_cast<nn::DropoutImpl&>(*layers[4]), Place::between);
  }
  if (encoder.ln) {
    spreader.norm(encoder.ln, {.joins = true});
  }
}

}  // namespace tutti::models::detail

#endif
