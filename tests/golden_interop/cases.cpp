#include <cmath>
#include <set>
#include <utility>

#include <tutti/checkpoint/json_file.hpp>
#include <tutti/checkpoint/safetensors.hpp>

#include "golden_interop/runner.hpp"

namespace golden_interop {

namespace {

constexpr std::uint64_t gamma = 0x9E3779B97F4A7C15U;

std::uint64_t fnv1a(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return hash;
}

double unit(std::uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9U;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBU;
  z ^= z >> 31;
  return static_cast<double>(z >> 40) / 8388608.0 - 1.0;
}

}  // namespace

at::Tensor fill_by_formula(const std::string& name, std::uint64_t seed, double base, double scale,
                           const std::vector<std::int64_t>& shape) {
  at::Tensor out = at::empty(shape, at::kFloat);
  auto* values = out.mutable_data_ptr<float>();
  const std::uint64_t start = fnv1a(name) + seed * gamma;
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    const double u = unit(start + (static_cast<std::uint64_t>(i) + 1) * gamma);
    values[i] = static_cast<float>(base + scale * u);
  }
  return out;
}

Tensors read_tensors(const std::filesystem::path& path) {
  const auto read = tutti::checkpoint::read_safetensors(path);
  return {read.begin(), read.end()};
}

Json read_json(const std::filesystem::path& path) {
  return tutti::checkpoint::read_json(path);
}

Case::Case(std::string kind_, std::string name_, std::filesystem::path folder_)
    : kind(std::move(kind_)), name(std::move(name_)), folder(std::move(folder_)) {
  if (has("case.json")) {
    json = read("case.json");
  }
}

Tensors Case::weights() const {
  Tensors out;
  const auto seed = static_cast<std::uint64_t>(json["seed"].integer());
  for (const Json& entry : json["tensors"].array()) {
    std::vector<std::int64_t> shape;
    for (const Json& extent : entry["shape"].array()) {
      shape.push_back(extent.integer());
    }
    const std::string& tensor = entry["name"].string();
    const std::string& dtype = entry["dtype"].string();
    if (dtype != "F32" && dtype != "I64") {
      throw Unmapped("the tensor " + tensor + " has the type " + dtype);
    }
    out[tensor] = dtype == "I64" ? at::zeros(shape, at::kLong)
                                 : fill_by_formula(tensor, seed, entry["base"].number(),
                                                   entry["scale"].number(), shape);
  }
  return out;
}

void Case::write_pretrained(const std::filesystem::path& target) const {
  tutti::checkpoint::write_json(target / "config.json", read("config.json"));
  const Tensors all = weights();
  tutti::checkpoint::write_safetensors(target / "model.safetensors", {all.begin(), all.end()},
                                       {{"format", "pt"}});
}

void Case::close_where(const std::string& what, const at::Tensor& mask, const at::Tensor& got,
                       const at::Tensor& want, double scale) const {
  const at::Tensor seen = mask.ne(0);
  if (!got.defined() || got.sizes() != want.sizes()) {
    close(what, got, want, scale);
    return;
  }
  // The largest value is that of all positions, as the reference's rule says.
  const double all = want.abs().max().item<double>();
  const double part = want.index({seen}).abs().max().item<double>();
  close(what, got.detach().cpu().index({seen}), want.index({seen}),
        part > 0 ? scale * all / part : scale);
}

void Case::gradient_norms(const torch::nn::Module& model, const tutti::models::WeightLayout& layout,
                          double relative) const {
  const auto got = golden_interop::gradient_norms(model, layout);
  double all = 0;
  for (const auto& [tensor, norm] : json["grad_norms"].object()) {
    all += norm.number() * norm.number();
  }
  for (const auto& [tensor, norm] : json["grad_norms"].object()) {
    const auto found = got.find(tensor);
    if (found == got.end()) {
      check(false, "the layout has no tensor " + tensor);
    } else {
      number("gradient of " + tensor, found->second, norm.number(), relative,
             2e-6 * std::sqrt(all));
    }
  }
}

std::map<std::string, double> gradient_norms(const torch::nn::Module& model,
                                             const tutti::models::WeightLayout& layout) {
  std::map<std::string, double> out;
  for (const tutti::models::DiskTensor& one : layout.tensors) {
    const at::Tensor& view = one.tensor;
    for (const at::Tensor& parameter : model.parameters()) {
      if (!parameter.is_alias_of(view)) {
        continue;
      }
      const at::Tensor& grad = parameter.grad();
      out[one.name] = !grad.defined()
                          ? 0
                          : grad.detach()
                                .contiguous()
                                .as_strided(view.sizes(), view.strides(),
                                            view.storage_offset() - parameter.storage_offset())
                                .to(at::kDouble)
                                .norm()
                                .item<double>();
    }
  }
  return out;
}

}  // namespace golden_interop
