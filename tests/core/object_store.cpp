#include <tutti/core/object_store.hpp>

#include <concepts>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;

namespace {

// The least that a store is: objects are the names of their files.
struct Shelf {
  std::shared_ptr<std::map<std::string, std::string>> objects =
      std::make_shared<std::map<std::string, std::string>>();

  std::string get_uri(const std::string& name) const { return "shelf://" + name; }
  void upload_object(const std::string& name, const std::string& file) const {
    (*objects)[name] = file;
  }
  void download_object(const std::string& name, const std::string& file) const {
    if (objects->count(name) == 0) {
      throw ObjectNotFound("Shelf: there is no '" + name + "'");
    }
    (*objects)[file] = objects->at(name);
  }
  std::int64_t get_object_size(const std::string& name) const {
    return objects->count(name) != 0 ? std::ssize(objects->at(name)) : -1;
  }
  Names list_objects(const std::string& prefix) const {
    Names out;
    for (const auto& [name, file] : *objects) {
      if (name.compare(0, prefix.size(), prefix) == 0) {
        out.push_back(name);
      }
    }
    return out;
  }
};

struct ChangedByUploads : Shelf {
  void upload_object(const std::string&, const std::string&) {}  // not const
};
struct WithoutSizes : Shelf {
  void get_object_size(const std::string&) const {}
};
struct NotCopied : Shelf {
  NotCopied() = default;
  NotCopied(NotCopied&&) = default;
  NotCopied& operator=(NotCopied&&) = default;
};

}  // namespace

static_assert(ObjectStore<Shelf>);
static_assert(ObjectStore<AnyObjectStore>);
static_assert(!ObjectStore<ChangedByUploads>);
static_assert(!ObjectStore<WithoutSizes>);
static_assert(!ObjectStore<NotCopied>);
static_assert(!ObjectStore<std::string>);
static_assert(std::convertible_to<Shelf, AnyObjectStore>);
static_assert(!std::convertible_to<std::string, AnyObjectStore>);

TEST_CASE("any object store does what the store in it does", "[core][object_store]") {
  const Shelf shelf;
  const AnyObjectStore store = shelf;
  CHECK(store);
  CHECK(store.get_uri("a/b") == "shelf://a/b");
  store.upload_object("runs/one", "/tmp/file");
  store.upload_object("runs/two", "");
  store.upload_object("other", "x");
  CHECK(*shelf.objects == std::map<std::string, std::string>{
                              {"other", "x"}, {"runs/one", "/tmp/file"}, {"runs/two", ""}});
  CHECK(store.get_object_size("runs/one") == 9);
  CHECK(store.get_object_size("runs/two") == 0);
  CHECK(store.get_object_size("none") == -1);
  CHECK(store.list_objects("runs/") == Names{"runs/one", "runs/two"});
  CHECK(store.list_objects("none").empty());
  store.download_object("runs/one", "here");
  CHECK(shelf.objects->at("here") == "/tmp/file");
}

TEST_CASE("copies of any object store share it, and it outlives where it came from",
          "[core][object_store]") {
  AnyObjectStore first;
  {
    const Shelf shelf;
    first = shelf;
  }
  const AnyObjectStore second = first;  // not a store within a store
  second.upload_object("a", "file");
  first = AnyObjectStore();
  CHECK_FALSE(first);
  CHECK(second.list_objects("") == Names{"a"});
}

TEST_CASE("any object store without a store says so", "[core][object_store]") {
  const AnyObjectStore none;
  CHECK_FALSE(none);
  const std::string expected =
      "AnyObjectStore: there is no store, expected one such as "
      "tutti::LocalObjectStore";
  CHECK_THAT(message([&] { (void)none.get_uri("a"); }), ContainsSubstring(expected));
  CHECK_THAT(message([&] { none.upload_object("a", "b"); }), ContainsSubstring(expected));
  CHECK_THAT(message([&] { none.download_object("a", "b"); }), ContainsSubstring(expected));
  CHECK_THAT(message([&] { (void)none.get_object_size("a"); }), ContainsSubstring(expected));
  CHECK_THAT(message([&] { (void)none.list_objects("a"); }), ContainsSubstring(expected));
}

TEST_CASE("an object that is not there is told from other failures", "[core][object_store]") {
  const AnyObjectStore store = Shelf{};
  CHECK_THROWS_AS(store.download_object("a", "b"), ObjectNotFound);
  CHECK(message([&] { store.download_object("a", "b"); }) == "Shelf: there is no 'a'");
  struct Down : Shelf {
    void download_object(const std::string&, const std::string&) const {
      throw std::runtime_error("the line is down");
    }
  };
  const AnyObjectStore down = Down{};
  try {
    down.download_object("a", "b");
    FAIL("nothing was thrown");
  } catch (const ObjectNotFound&) {
    FAIL("a line that is down is no missing object");
  } catch (const std::runtime_error& error) {
    CHECK(std::string(error.what()) == "the line is down");
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
