// error: TransformCheck<Darken>
// error: tutti: this is no transform of images; give it at::Tensor operator\(\)\(const
// culprit: Darken
// torch
#include <tutti/data/compose.hpp>

struct Darken {
#ifdef FIXED
  at::Tensor operator()(const at::Tensor& image, tutti::Rng&) const { return image; }
#else
  at::Tensor operator()(const at::Tensor& image, tutti::Rng&) { return image; }
#endif
};

const tutti::data::Compose augment{Darken{}};
