// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tutti/core/event.hpp>

/// Words for what policies do and what models have, by which rules speak of both.
namespace tutti {

/// Tags by which policies speak of each other without naming each other; users may add their own.
struct mixes_inputs {};             ///< replaces the inputs by combinations of examples
struct interpolates_loss {};        ///< changes targets or loss so that they are interpolations
struct smooths_targets {};          ///< rewrites the final targets of the batch
struct needs_dense_targets {};      ///< hands the loss class probabilities, not class indices
struct selects_examples {};         ///< trains on a part of the batch
struct changes_input_size {};       ///< gives the model inputs of changing size
struct changes_sequence_length {};  ///< gives the model sequences of changing length
struct augments_images {};          ///< changes single images on their way into a batch
struct averages_weights {};         ///< keeps averaged weights and may swap them in
struct changes_model {};            ///< replaces layers or parameters
struct uses_batch_statistics {};    ///< puts in layers whose output depends on the whole batch
struct draws_masks {};              ///< puts in layers that drop units or blocks at random
struct clips_gradients {};          ///< rewrites gradients once they are complete
struct freezes_parameters {};       ///< takes parameters out of training
struct sets_learning_rate {};       ///< writes learning rates itself
struct averages_ranks {};           ///< averages parameters over ranks itself; gradients stay local
struct uses_closure {};             ///< runs forward and backward itself, several times a step

/// Tag: replaces layers of that kind, or makes new ones. `replaces_layers<>`: of any kind.
template <class... Layer>
struct replaces_layers {};
template <class... Layer>
struct adds_layers {};

/// The reason of a rule that says where a surgery stands among others.
inline constexpr const char* one_order_of_surgeries =
    "surgeries have one order, so that a recipe makes one model however it is listed";

/// What a model's type can say of it in `using model_features = types<...>`; algorithms ask for it.
struct takes_images {};         ///< inputs are images [N, C, H, W], of any size unless it says:
struct fixed_input_size {};     ///< all inputs have the one size that the model was made for
struct takes_tokens {};         ///< inputs are token ids [N, length], in a batch of named tensors
struct has_attention {};        ///< attention layers that take a bias (models/gpt2.hpp, bert.hpp)
struct has_feed_forward {};     ///< BERT's intermediate and output blocks
struct has_residual_blocks {};  ///< blocks with a branch to drop (models/residual_block.hpp)
struct loss_takes_indices {};   ///< a loss for targets that are class indices, and for no others
struct loss_not_linear_in_targets {};  ///< a loss of mixed targets that is not the mix of losses
struct is_compiled {};                 ///< an exported graph, which has no layers to replace

namespace detail {

// The features that a model's type lists: its own, its network's; void when it does not say.
template <class M>
struct FeaturesOf {
  using type = void;
};
template <class M>
  requires requires { typename M::model_features; }
struct FeaturesOf<M> {
  using type = typename M::model_features;
};
template <class M>
  requires(
      !requires { typename M::model_features; } && requires { typename M::network_type; })
struct FeaturesOf<M> : FeaturesOf<typename M::network_type> {};
template <class M>
  requires(
      !requires { typename M::model_features; } && requires { typename M::element_type; })
struct FeaturesOf<M> : FeaturesOf<typename M::element_type> {};  // of a shared_ptr

// What an exported model takes is in its file, and so is not known when the program compiles.
template <class M, class F>
inline constexpr bool file_decides = contains<is_compiled, typename FeaturesOf<M>::type> &&
                                     contains<F, types<takes_images, takes_tokens>>;

}  // namespace detail

/// `M` may have feature `F`: its type lists it, or says nothing of features. For `supports`:
///
///     template <class M>
///     static constexpr bool supports = offers<M, takes_images>;
template <class M, class F>
inline constexpr bool offers =
    detail::contains<F, typename detail::FeaturesOf<M>::type> ||
    std::is_void_v<typename detail::FeaturesOf<M>::type> || detail::file_decides<M, F>;

/// `M` says of itself that it has feature `F`.
template <class M, class F>
inline constexpr bool lists = detail::contains<F, typename detail::FeaturesOf<M>::type>;

/// `P` can train an `M`: it says so, or says nothing about models.
template <class P, class M>
concept Supports = !requires { P::template supports<M>; } || P::template supports<M>;

}  // namespace tutti
