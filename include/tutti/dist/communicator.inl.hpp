// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/communicator.hpp>

namespace tutti::dist {

TUTTI_INLINE SingleProcess::~SingleProcess() = default;

TUTTI_INLINE void Communicator::check_parts(const char* call, const at::Tensor& whole,
                                            const at::Tensor& part) const {
  TUTTI_CHECK(whole.is_contiguous() && part.is_contiguous(), "tutti::dist::", call,
              ": a tensor is not contiguous; pass contiguous ones");
  TUTTI_CHECK(whole.numel() == part.numel() * size() && whole.scalar_type() == part.scalar_type(),
              "tutti::dist::", call, ": the whole has ", whole.numel(), " elements of ",
              whole.scalar_type(), " and this rank's part ", part.numel(), " of ",
              part.scalar_type(), ", expected ", size(), " parts of one size and type");
}

TUTTI_INLINE void Communicator::check_exchange(const at::Tensor& output,
                                               const at::Tensor& input) const {
  TUTTI_CHECK(output.is_contiguous() && input.is_contiguous(),
              "tutti::dist::all_to_all_into: a tensor is not contiguous; pass contiguous ones");
  TUTTI_CHECK(output.numel() == input.numel() && output.numel() % size() == 0 &&
                  output.scalar_type() == input.scalar_type(),
              "tutti::dist::all_to_all_into: the output has ", output.numel(), " elements of ",
              output.scalar_type(), " and the input ", input.numel(), " of ", input.scalar_type(),
              ", expected ", size(), " parts of one size and type in each");
}

TUTTI_INLINE void Communicator::check_ranks(const std::vector<int>& ranks) const {
  bool has_this = false;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    TUTTI_CHECK(ranks[i] >= 0 && ranks[i] < size() && (i == 0 || ranks[i - 1] < ranks[i]),
                "tutti::dist::subgroup: rank ", ranks[i], " is number ", i,
                ", expected ascending ranks from 0 to ", size() - 1);
    has_this = has_this || ranks[i] == rank();
  }
  TUTTI_CHECK(has_this, "tutti::dist::subgroup: rank ", rank(),
              " calls it but is not among the ranks; call it with the ranks that it joins");
}

TUTTI_INLINE std::function<void()> Communicator::start_all_gather_into(const at::Tensor& output,
                                                                       const at::Tensor& input) {
  check_parts("all_gather_into", output, input);
  const std::vector<at::Tensor> parts = all_gather(input);
  const at::Tensor rows = output.detach().view({size(), input.numel()});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    rows.select(0, static_cast<std::int64_t>(i)).copy_(parts[i].reshape({-1}));
  }
  return [] {};
}

TUTTI_INLINE std::function<void()> Communicator::start_reduce_scatter_into(
    const at::Tensor& output, const at::Tensor& input) {
  check_parts("reduce_scatter_into", input, output);
  const at::Tensor sum = input.detach().clone();
  all_reduce(sum);
  output.detach().view({-1}).copy_(sum.view({size(), output.numel()}).select(0, rank()));
  return [] {};
}

TUTTI_INLINE void Communicator::all_to_all_into(const at::Tensor& output, const at::Tensor& input) {
  check_exchange(output, input);
  const std::vector<at::Tensor> all = all_gather(input);
  const at::Tensor rows = output.detach().view({size(), output.numel() / size()});
  for (std::size_t i = 0; i < all.size(); ++i) {
    rows.select(0, static_cast<std::int64_t>(i))
        .copy_(all[i].view({size(), rows.size(1)}).select(0, rank()));
  }
}

TUTTI_INLINE std::function<void()> Communicator::start_exchange(const char* call,
                                                                std::vector<Piece> sent,
                                                                std::vector<Piece> received) {
  TUTTI_CHECK(exchanges() && sent.empty() && received.empty(), "tutti::dist::", call, ": ",
              sent.size(), " pieces to send and ", received.size(),
              " to receive, which the backend ", backend(), " cannot; use all_to_all_into()");
  return [] {};
}

TUTTI_INLINE std::shared_ptr<Communicator> Communicator::subgroup(const std::vector<int>& ranks) {
  check_ranks(ranks);
  TUTTI_CHECK(ranks.size() == 1, "tutti::dist::subgroup: the backend ", backend(),
              " cannot make a group of ", ranks.size(),
              " of its ranks; use a tutti::dist::Group, made by tutti::dist::initialize");
  return ::tutti::detail::make<SingleProcess>();
}

}  // namespace tutti::dist
