// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/rank_state.hpp>

namespace tutti::train::detail {

TUTTI_INLINE std::string pack(const Archive& archive) {
  std::string out;
  archive.each_leaf([&](const std::string& path, const Archive::Leaf& leaf) {
    const at::Tensor bytes = leaf.tensor()->contiguous().view(at::kByte);
    out += path + '\n' + std::to_string(bytes.numel()) + '\n';
    out.append(static_cast<const char*>(bytes.const_data_ptr()),
               static_cast<std::size_t>(bytes.numel()));
  });
  return out;
}

TUTTI_INLINE void unpack(const std::string& text, Archive& archive) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t name_end = text.find('\n', at);
    const std::size_t size_end = text.find('\n', name_end + 1);
    const auto size = std::stoll(text.substr(name_end + 1, size_end - name_end - 1));
    at::Tensor bytes(at::detail::empty_cpu({size}, at::kByte, false, std::nullopt));
    std::copy_n(text.data() + size_end + 1, size, static_cast<char*>(bytes.mutable_data_ptr()));
    archive.put(text.substr(at, name_end - at), bytes);
    at = size_end + 1 + static_cast<std::size_t>(size);
  }
}

TUTTI_INLINE at::Tensor position_of(const Rng& rng) {
  at::Tensor out(at::detail::empty_cpu({3}, at::kLong, false, std::nullopt));
  auto* data = out.mutable_data_ptr<std::int64_t>();
  data[0] = static_cast<std::int64_t>(rng.seed());
  data[1] = static_cast<std::int64_t>(rng.stream());
  data[2] = static_cast<std::int64_t>(rng.position());
  return out;
}

TUTTI_INLINE void restore_position(Rng& rng, const at::Tensor& saved) {
  const at::Tensor numbers = saved.contiguous().view(at::kLong);
  TUTTI_CHECK(numbers.numel() == 3, "the checkpoint keeps a random stream in ", numbers.numel(),
              " numbers, expected 3");
  const auto* data = numbers.const_data_ptr<std::int64_t>();
  rng.restore(static_cast<std::uint64_t>(data[0]), static_cast<std::uint64_t>(data[1]),
              static_cast<std::uint64_t>(data[2]));
}

}  // namespace tutti::train::detail

namespace tutti::train {

TUTTI_INLINE void save_rank_state(const PolicyStates& policies, Archive& archive) {
  checkpoint::save_rng(archive.child("libtorch"));
  for (const PolicyState& policy : policies) {
    if (policy.rng != nullptr) {
      archive.put("policies/" + std::string(policy.name), detail::position_of(*policy.rng));
    }
  }
}

TUTTI_INLINE void save_rank_states(const PolicyStates& policies, dist::Communicator& world,
                                   Archive& archive) {
  Archive own;
  save_rank_state(policies, own);
  const std::vector<std::string> all = world.all_gather_bytes(detail::pack(own));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    detail::unpack(all[rank], archive.child(std::to_string(rank)));
  }
}

TUTTI_INLINE std::function<void()> load_rank_state(const PolicyStates& policies, const State& state,
                                                   const Archive& archive) {
  const int ranks = dist::data_ranks(state);  // those of one copy of the model draw alike
  if (static_cast<int>(archive.size()) != ranks) {
    TORCH_WARN("the checkpoint was saved by ", archive.size(), " ranks and is loaded by ", ranks,
               "; random draws will not be those of the saved run");
  }
  const std::string rank = std::to_string(dist::data_rank(state));
  if (!archive.contains(rank)) {
    return nullptr;
  }
  const Archive& own = archive.child(rank);
  for (const PolicyState& policy : policies) {
    const std::string path = "policies/" + std::string(policy.name);
    if (policy.rng != nullptr && own.contains(path)) {
      detail::restore_position(*policy.rng, own.tensor(path));
    }
  }
  return [saved = own.child("libtorch")] {
    for (const std::string& what : checkpoint::load_rng(saved)) {
      TORCH_WARN("not restored from the checkpoint: ", what);
    }
  };
}

}  // namespace tutti::train
