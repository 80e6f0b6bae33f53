#include <tutti/train/rewind.hpp>

#include <ATen/ATen.h>

#include <tutti/optim/sgd.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("a copy of an archive has tensors of its own, empty children included",
          "[train][rewind]") {
  Archive archive;
  const at::Tensor weight = at::ones({2});
  archive.put("a/weight", weight);
  archive.put("count", std::int64_t{3});
  archive.put("name", "x");
  archive.put("on", true);
  archive.child("empty");
  const Archive copy = train::copy_archive(archive);
  weight.zero_();
  CHECK(copy.tensor("a/weight").equal(at::ones({2})));
  CHECK(copy.names() == archive.names());
  CHECK(copy.get<std::int64_t>("count") == 3);
  CHECK(copy.get<std::string>("name") == "x");
  CHECK(copy.get<bool>("on"));
  CHECK(copy.child("empty").empty());
}

TEST_CASE("steps are taken back: weights, momentum, time and rates", "[train][rewind]") {
  State state;
  train::Run run;
  state.communicator = std::make_shared<dist::SingleProcess>();
  const auto net = tiny::net();
  state.task = AnyModel(net);
  state.model = net;
  state.optimizers = {SGD{.lr = 0.1, .momentum = 0.9}.build(net->parameters())};
  const auto step = [&] {
    const Batch batch = tiny::batches(1).front();
    net->loss(net->forward(batch), batch).total().backward();
    state.optimizers.front()->step();
    train::zero_gradients(state);
    state.timestamp = state.timestamp.to_next_batch(6);
  };
  step();
  const at::Tensor before = tiny::flat(*net);
  train::Rewind rewind({}, state, run);
  step();
  const at::Tensor after = tiny::flat(*net);
  state.optimizers.front()->param_groups()[0].options().set_lr(5);
  state.max_duration = "1ba";
  rewind.rewind();
  CHECK(tiny::flat(*net).equal(before));
  CHECK(state.timestamp.batch == 1);
  CHECK_FALSE(state.max_duration);
  CHECK(state.optimizers.front()->param_groups()[0].options().get_lr() == 0.1);
  step();  // with the momentum that was there
  CHECK(tiny::flat(*net).equal(after));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
