#include <tutti/callbacks/prediction_writer.hpp>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/checkpoint/safetensors.hpp>

#include "callbacks/run.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Scores = PredictionWriter::Scores;

static_assert(role_of<PredictionWriter> == Role::callback);
static_assert(Recipe<PredictionWriter>::valid);

namespace {

// Returns its inputs, also as other outputs.
struct Echo : torch::nn::Module {
  Echo() { weight = register_parameter("weight", at::ones({1})); }
  Outputs forward(const Batch& batch) {
    const at::Tensor x = batch.inputs() * weight;
    if (more) {
      return {{"logits", x}, {"hidden", x.slice(1, 0, 2) + 1}, {"mean", x.mean()}};
    }
    return flat ? x.select(1, 0) : deep ? x.unsqueeze(1) : whole ? x.argmax(1, true) : x;
  }
  Loss loss(const Outputs& outputs, const Batch&) { return outputs.tensor().sum(); }
  at::Tensor weight;
  bool more = false;
  bool flat = false;
  bool deep = false;
  bool whole = false;
};

const std::vector<std::vector<float>> rows{
    {0.0F, 1.0F, 0.5F}, {2.0F, -1.0F, 2.0F}, {std::nanf(""), 0.25F, -4.0F}};

at::Tensor tensor() {
  at::Tensor out = at::empty({3, 3});
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      out[i][j] = rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
    }
  }
  return out;
}

// Two batches: two rows and one.
std::vector<Batch> batches() {
  const at::Tensor all = tensor();
  return {Batch{all.slice(0, 0, 2), at::zeros({2})}, Batch{all.slice(0, 2, 3), at::zeros({1})}};
}

// What is in the folder after a prediction.
struct Predicted {
  explicit Predicted(PredictionWriter writer, const Echo& like = {}) {
    model->more = like.more;
    model->flat = like.flat;
    model->deep = like.deep;
    model->whole = like.whole;
    writer.filename = (folder / writer.filename).string();
    Trainer<PredictionWriter, callback_run::Uploaded> trainer{
        model, callback_run::options(), std::move(writer), callback_run::Uploaded{}};
    trainer.predict(batches(), -1, /*return_outputs=*/false);
    uploads = trainer.get<callback_run::Uploaded>().names;
  }
  [[nodiscard]] std::string text(const std::string& file = "p.csv") const {
    return read_bytes(folder / file);
  }
  TemporaryFolder folder{};
  std::shared_ptr<Echo> model = std::make_shared<Echo>();
  std::vector<std::string> uploads{};
};

const std::vector<std::string> names{"a", "b,c", "d"};

}  // namespace

TEST_CASE("a CSV has every column, with the names of classes or their numbers",
          "[callbacks][prediction_writer]") {
  CHECK(Predicted({.filename = "p.csv"}).text() ==
        "example,0,1,2\n0,0,1,0.5\n1,2,-1,2\n2,nan,0.25,-4\n");
  CHECK(Predicted({.filename = "p.csv", .class_names = names}).text() ==
        "example,a,\"b,c\",d\n0,0,1,0.5\n1,2,-1,2\n2,nan,0.25,-4\n");
  Echo like;
  like.flat = true;
  CHECK(Predicted({.filename = "p.csv"}, like).text() == "example,0\n0,0\n1,2\n2,nan\n");
  Echo whole;
  whole.whole = true;
  CHECK(Predicted({.filename = "p.csv"}, whole).text() == "example,0\n0,1\n1,0\n2,0\n");
}

TEST_CASE("rows of a CSV may have names", "[callbacks][prediction_writer]") {
  const auto name = [](std::int64_t row) { return "cat/" + std::string(row == 1 ? "1,5" : "2"); };
  CHECK(Predicted({.filename = "p.csv", .example_name = name}).text() ==
        "example,0,1,2\ncat/2,0,1,0.5\n\"cat/1,5\",2,-1,2\ncat/2,nan,0.25,-4\n");
  CHECK_THROWS_WITH((Predicted({.filename = "p.safetensors", .example_name = name})),
                    ContainsSubstring("example_name is set and filename is") &&
                        ContainsSubstring("expected a name that ends in .csv, which has names"));
}

TEST_CASE("the best classes come with their scores, equal ones by their number",
          "[callbacks][prediction_writer]") {
  CHECK(Predicted({.filename = "p.csv", .class_names = names, .top_k = 2}).text() ==
        "example,class_1,score_1,class_2,score_2\n0,\"b,c\",1,d,0.5\n1,a,2,d,2\n"
        "2,a,nan,\"b,c\",0.25\n");
  CHECK(Predicted({.filename = "p.csv", .top_k = 1}).text() ==
        "example,class_1,score_1\n0,1,1\n1,0,2\n2,0,nan\n");
}

TEST_CASE("scores may be probabilities", "[callbacks][prediction_writer]") {
  for (const Scores scores : {Scores::softmax, Scores::sigmoid}) {
    const Predicted predicted({.filename = "p.safetensors", .scores = scores});
    const auto read = checkpoint::read_safetensors(predicted.folder / "p.safetensors");
    REQUIRE(read.size() == 1);
    CHECK(read[0].first == "outputs");
    const at::Tensor wanted = scores == Scores::softmax ? tensor().softmax(1) : tensor().sigmoid();
    CHECK(at::allclose(read[0].second, wanted, 1e-6, 1e-7, /*equal_nan=*/true));
  }
  const std::string text =
      Predicted({.filename = "p.csv", .top_k = 1, .scores = Scores::softmax}).text();
  CHECK_THAT(text, ContainsSubstring("\n0,1,0.50648"));  // e / (1 + e + sqrt(e))
}

TEST_CASE("a safetensors file has all outputs, joined", "[callbacks][prediction_writer]") {
  Echo like;
  like.more = true;
  Predicted predicted({.filename = "p.safetensors", .class_names = names}, like);
  checkpoint::SafetensorsFile file(predicted.folder / "p.safetensors");
  CHECK(file.metadata() == checkpoint::Metadata{{"class_names", R"(["a", "b,c", "d"])"}});
  CHECK(at::allclose(file.read("logits"), tensor(), 0, 0, true));
  CHECK(at::allclose(file.read("hidden"), tensor().slice(1, 0, 2) + 1, 0, 0, true));
  CHECK(file.read("mean").sizes() == at::IntArrayRef{2});  // one a batch
  const Predicted best({.filename = "p.safetensors", .top_k = 2}, like);
  const checkpoint::SafetensorsFile of_best(best.folder / "p.safetensors");
  CHECK(of_best.read("classes").equal(at::tensor({1, 2, 0, 2, 0, 1}, at::kLong).view({3, 2})));
  CHECK(at::allclose(of_best.read("scores"),
                     at::tensor({1.0F, 0.5F, 2.0F, 2.0F, std::nanf(""), 0.25F}).view({3, 2}), 0, 0,
                     true));
  CHECK(of_best.contains("hidden"));
  CHECK_FALSE(of_best.contains("logits"));
}

TEST_CASE("a file that is there stays unless it may be replaced",
          "[callbacks][prediction_writer]") {
  for (const char* file : {"p.csv", "new/p.safetensors"}) {
    const TemporaryFolder folder;
    const std::string path = (folder / file).string();
    Trainer<PredictionWriter, callback_run::Uploaded> trainer{
        std::make_shared<Echo>(), callback_run::options(),
        PredictionWriter{.filename = path, .remote_file_name = "there"}, callback_run::Uploaded{}};
    trainer.predict(batches());
    const std::string first = read_bytes(path);
    CHECK(trainer.get<callback_run::Uploaded>().names.size() == 1);
    CHECK_THROWS_WITH(trainer.predict(batches()),
                      ContainsSubstring(" exists; set overwrite to replace it"));
    CHECK(read_bytes(path) == first);
    Trainer<PredictionWriter, callback_run::Uploaded> other{
        std::make_shared<Echo>(), callback_run::options(),
        PredictionWriter{.filename = path, .overwrite = true}, callback_run::Uploaded{}};
    other.predict(batches(), 1);
    CHECK(read_bytes(path).size() < first.size());
    CHECK(sorted_names(std::filesystem::path(path).parent_path()).size() == 1);
  }
}

TEST_CASE("outputs that do not fit are refused, and nothing is left",
          "[callbacks][prediction_writer]") {
  const auto refuses = [](PredictionWriter writer, const std::string& says, const Echo& like = {}) {
    CHECK_THROWS_WITH(Predicted(std::move(writer), like), ContainsSubstring(says));
  };
  refuses({.filename = "p.csv", .class_names = {"a", "b"}},
          "there are 2 class_names, but the outputs have 3 columns");
  refuses({.filename = "p.csv", .top_k = 4}, "top_k is 4, but the outputs have 3 columns");
  Echo deep;
  deep.deep = true;
  refuses({.filename = "p.csv"}, "the outputs are [2, 1, 3], expected [N, C] or [N] for a .csv",
          deep);
  refuses({.filename = "p.safetensors", .top_k = 1},
          "scores and top_k are of floating outputs [N, C]; these are Float [2, 1, 3]", deep);
  refuses({.filename = "p.txt"}, "expected a name that ends in .csv or .safetensors");
  CHECK_THROWS_WITH(PredictionWriter{.top_k = -1}.validate(), ContainsSubstring("0 or more"));
  CHECK_THROWS_WITH((PredictionWriter{.class_names = {"a"}, .top_k = 2}.validate()),
                    ContainsSubstring("top_k is 2, but there are 1 class_names"));

  const TemporaryFolder folder;
  Trainer<PredictionWriter, callback_run::Uploaded> trainer{
      std::make_shared<Echo>(), callback_run::options(),
      PredictionWriter{.filename = (folder / "p.csv").string()}, callback_run::Uploaded{}};
  std::vector<Batch> uneven = batches();
  uneven.emplace_back(at::zeros({2, 5}), at::zeros({2}));
  CHECK_THROWS_WITH(trainer.predict(uneven),
                    ContainsSubstring("the outputs have 5 columns, those of the first batch 3"));
  CHECK(sorted_names(folder.path()).empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
