// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/process_group.hpp>

namespace tutti::dist {

namespace detail {

// Newer LibTorch has other names for these and warns of the old ones.
template <class G>
auto all_gather_single(G& group, at::Tensor& whole, at::Tensor& part) {
  if constexpr (requires { group.all_gather_single(whole, part); }) {
    return group.all_gather_single(whole, part);
  } else {
    return group._allgather_base(whole, part);
  }
}
template <class G>
auto reduce_scatter_single(G& group, at::Tensor& part, at::Tensor& whole) {
  if constexpr (requires { group.reduce_scatter_single(part, whole); }) {
    return group.reduce_scatter_single(part, whole);
  } else {
    return group._reduce_scatter_base(part, whole);
  }
}
template <class G>
auto all_to_all_single(G& group, at::Tensor& received, at::Tensor& given) {
  std::vector<std::int64_t> even;
  if constexpr (requires { group.all_to_all_single(received, given, even, even); }) {
    return group.all_to_all_single(received, given, even, even);
  } else {
    return group.alltoall_base(received, given, even, even);
  }
}

}  // namespace detail

TUTTI_INLINE Group::~Group() {
  detail::shutdown_quietly(group_);
}

TUTTI_INLINE std::function<void()> Group::start_all_gather_into(const at::Tensor& output,
                                                                const at::Tensor& input) {
  check_parts("all_gather_into", output, input);
  FlightRecorder& recorder = flight_recorder();
  const std::uint64_t number =
      recorder.begin("all_gather_into", input.sizes(), c10::toString(input.scalar_type()));
  auto work = guarded("all_gather_into", [&] {
    at::Tensor flat = output.detach().view({-1});
    at::Tensor part = input.detach().view({-1});
    return detail::all_gather_single(*group_, flat, part);
  });
  return [this, work, output, input, number, &recorder] {
    guarded("all_gather_into", [&] { work->wait(); });
    recorder.end(number);
  };
}

TUTTI_INLINE std::function<void()> Group::start_reduce_scatter_into(const at::Tensor& output,
                                                                    const at::Tensor& input) {
  const char* const call = "reduce_scatter_into";
  check_parts(call, input, output);
  at::Tensor part = output.detach().view({-1});
  at::Tensor whole = input.detach().view({-1});
  if (!input.is_cpu()) {
    const std::uint64_t number =
        flight_recorder().begin(call, input.sizes(), c10::toString(input.scalar_type()));
    auto work = guarded(call, [&] { return detail::reduce_scatter_single(*group_, part, whole); });
    return [this, call, work, output, input, number] {
      guarded(call, [&] { work->wait(); });
      flight_recorder().end(number);
    };
  }
  guarded(call, input, [&] {
    // Gloo exchanges whole tensors only. In pieces that takes little memory beside `input`.
    constexpr std::int64_t piece_bytes = 8 << 20;
    const std::int64_t most = std::max<std::int64_t>(
        1, piece_bytes / (size() * static_cast<std::int64_t>(input.itemsize())));
    const at::Tensor rows = whole.view({size(), part.numel()});
    for (std::int64_t from = 0; from < part.numel(); from += most) {
      const std::int64_t count = std::min(most, part.numel() - from);
      at::Tensor sent = rows.narrow(1, from, count).contiguous();
      at::Tensor received = at::empty_like(sent);  // of this rank, from each rank
      detail::all_to_all_single(*group_, received, sent)->wait();
      at::Tensor sum = part.narrow(0, from, count);
      at::sum_out(sum, received, 0);
    }
  });
  return [] {};
}

TUTTI_INLINE void Group::all_to_all_into(const at::Tensor& output, const at::Tensor& input) {
  check_exchange(output, input);
  guarded("all_to_all_into", input, [&] {
    at::Tensor received = output.detach().view({size(), -1});
    at::Tensor given = input.detach().view({size(), -1});
    detail::all_to_all_single(*group_, received, given)->wait();
  });
}

TUTTI_INLINE std::function<void()> Group::start_exchange(const char* call, std::vector<Piece> sent,
                                                         std::vector<Piece> received) {
  TUTTI_CHECK(exchanges(), "tutti::dist::", call, ": the backend ", backend(),
              " exchanges no pieces; use all_to_all_into()");
  if (sent.empty() && received.empty()) {
    return [] {};
  }
  std::int64_t elements = 0;
  for (const Piece& piece : received) {
    elements += piece.memory.numel();
  }
  FlightRecorder& recorder = flight_recorder();
  const at::Tensor& one = received.empty() ? sent.front().memory : received.front().memory;
  const std::uint64_t number =
      recorder.begin(call, {&elements, 1}, c10::toString(one.scalar_type()));
  const auto tag = [](std::map<int, int>& counts, int rank) {
    int& count = counts[rank];
    return count = (count + 1) % 4096;
  };
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  guarded(call, [&] {
    for (const Piece& piece : received) {
      std::vector<at::Tensor> memory{piece.memory};
      works.push_back(group_->recv(memory, piece.rank, tag(received_, piece.rank)));
    }
    for (const Piece& piece : sent) {
      std::vector<at::Tensor> memory{piece.memory};
      works.push_back(group_->send(memory, piece.rank, tag(sent_, piece.rank)));
    }
  });
  return [this, call, works = std::move(works), sent = std::move(sent),
          received = std::move(received), number, &recorder] {
    guarded(call, [&] {
      for (const auto& work : works) {
        work->wait();
      }
    });
    recorder.end(number);
  };
}

TUTTI_INLINE std::shared_ptr<Communicator> Group::subgroup(const std::vector<int>& ranks) {
  check_ranks(ranks);
  if (ranks.size() == 1) {
    return std::make_shared<SingleProcess>();
  }
  std::string key = "ranks";
  for (const int rank : ranks) {
    key += "_" + std::to_string(rank);
  }
  key += "/" + std::to_string(subgroups_[key]++);
  return std::shared_ptr<Group>(new Group(*this, ranks, key));
}

TUTTI_INLINE Group::Group(const Group& whole, const std::vector<int>& ranks, const std::string& key)
    : Communicator([&] {
        Environment place = whole.environment();
        place.world_size = static_cast<int>(ranks.size());
        place.rank =
            static_cast<int>(std::find(ranks.begin(), ranks.end(), whole.rank()) - ranks.begin());
        return place;
      }()),
      timeout_(whole.timeout_),
      backend_(whole.backend_),
      device_(whole.device_),
      machine_(whole.machine_),
      store_(c10::make_intrusive<c10d::PrefixStore>(key, whole.store_)) {
  group_ = guarded("subgroup", [&] {
    return detail::make_group(store_, environment(), device_, timeout_, machine_);
  });
}

}  // namespace tutti::dist
