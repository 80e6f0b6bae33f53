#include <tutti/checkpoint/object_store.hpp>

#include <concepts>

#include <tutti/checkpoint/command_object_store.hpp>
#include <tutti/checkpoint/local_object_store.hpp>

#include "support/catch.hpp"

using namespace tutti;

static_assert(ObjectStore<LocalObjectStore>);
static_assert(ObjectStore<CommandObjectStore>);

TEST_CASE("the stores of checkpoints are object stores of any kind", "[checkpoint][object_store]") {
  const AnyObjectStore store = LocalObjectStore{"/archive"};
  CHECK(store.get_uri("a/b") == "file:///archive/a/b");
}
