// error: this policy has save(Archive&) but no load(const Archive&); write both
// culprit: Count
// torch
#include <tutti/train/policy_states.hpp>

struct Count final {
  int batches = 0;
  void apply(tutti::BatchEnd, tutti::State&) { ++batches; }
  void save(tutti::Archive& archive) const { archive.put("batches", batches); }
#ifdef FIXED
  void load(const tutti::Archive& archive) {
    batches = archive.get<int>("batches");
  }
#endif
};

void* state(Count& count) {
  return tutti::train::policy_state(count).policy;
}
