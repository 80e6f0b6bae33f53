#include <tutti/checkpoint/command_object_store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

static_assert(ObjectStore<CommandObjectStore>);
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;

namespace {

// The tools of any Linux, in the part of an object store's.
CommandObjectStore store_in(const TemporaryFolder& folder) {
  const std::string root = (folder / "").string();
  return {.uri = "folder://store",
          .upload = "cp {file} '" + root + "{name}'",
          .download = "cp '" + root + "{name}' {file}",
          .size = "stat -c %s '" + root + "{name}'",
          .list = "find '" + root + "' -name {prefix}* -printf '%P\\n'"};
}

}  // namespace

TEST_CASE("commands stand for a store", "[checkpoint][object_store]") {
  const TemporaryFolder folder;
  const TemporaryFolder files;
  const CommandObjectStore store = store_in(folder);
  CHECK_NOTHROW(store.validate());
  write_bytes(files / "a", "text");
  store.upload_object("one", (files / "a").string());
  CHECK(store.get_uri("one") == "folder://store/one");
  CHECK(store.get_object_size("one") == 4);
  CHECK(store.list_objects("o") == Names{"one"});
  CHECK(store.list_objects("p").empty());
  store.download_object("one", (files / "b").string());
  CHECK(read_bytes(files / "b") == "text");
}

TEST_CASE("names and files reach the program as they are", "[checkpoint][object_store]") {
  const TemporaryFolder folder;
  const TemporaryFolder files;
  const CommandObjectStore store = store_in(folder);
  const std::string odd = "a b; touch {file} $(touch x) '\"\\ * {name}";
  write_bytes(files / odd, "odd");
  store.upload_object(odd, (files / odd).string());
  CHECK(sorted_names(folder.path()) == Names{odd});
  CHECK(read_bytes(folder / odd) == "odd");
  CHECK(store.get_object_size(odd) == 3);
}

TEST_CASE("a command that fails is told with its status and what it said",
          "[checkpoint][object_store][native]") {
  const TemporaryFolder folder;
  CommandObjectStore store = store_in(folder);
  CHECK_THROWS_AS(store.get_object_size("none"), ObjectNotFound);
  CHECK_THROWS_AS(store.download_object("none", (folder / "x").string()), ObjectNotFound);
  CHECK_THROWS_WITH(store.upload_object("a", (folder / "none").string()),
                    ContainsSubstring("ended with status 1: cp: cannot stat"));
  store.upload = "sh -c 'echo refused >&2; exit 7' {file} {name}";
  CHECK_THROWS_WITH(store.upload_object("a", "b"), ContainsSubstring("status 7: refused"));
  // What is quoted is not what is said, and a program that cannot be run says nothing of an object.
  const auto not_there = [&](const std::string& name) {
    try {
      store.download_object(name, (folder / "x").string());
    } catch (const ObjectNotFound&) {
      return true;
    } catch (const c10::Error&) {
      return false;
    }
    return false;
  };
  store.download = "sh -c 'echo reset while reading s3://$1 >&2; exit 1' {file} {name}";
  CHECK(!not_there("run404/checkpoints/latest"));
  store.download = "sh -c 'echo s3://$1: 404 >&2; exit 1' {file} {name}";
  CHECK(not_there("run404/checkpoints/latest"));
  store.download = "sh -c 'no-such-program' {file} {name}";
  CHECK(!not_there("checkpoints/latest"));
  store.download = "sh -c 'exit 44' {file} {name}";
  store.not_found = {"status 44"};
  CHECK_THROWS_AS(store.download_object("a", "b"), ObjectNotFound);
  store.upload = "no-such-program {file} {name}";
  CHECK_THROWS_WITH(store.upload_object("a", "b"),
                    ContainsSubstring("cannot start 'no-such-program': No such file"));
  store.upload = "sh -c 'sleep 60' {file} {name}";
  store.timeout = std::chrono::seconds(1);
  CHECK_THROWS_WITH(store.upload_object("a", "b"), ContainsSubstring("was killed after 1 s"));
  store.size = "echo many {name}";
  CHECK_THROWS_WITH(store.get_object_size("a"), ContainsSubstring("expected a number of bytes"));
}

TEST_CASE("commands without their placeholders are refused", "[checkpoint][object_store]") {
  const TemporaryFolder folder;
  CommandObjectStore store = store_in(folder);
  store.upload = "cp {file}";
  CHECK_THROWS_WITH(store.validate(), ContainsSubstring("upload is \"cp {file}\", expected one"));
  store = store_in(folder);
  store.download = "cp '{name} {file}";
  CHECK_THROWS_WITH(store.validate(), ContainsSubstring("quote that is not closed"));
  store = store_in(folder);
  store.size = "";
  CHECK(store.get_object_size("a") == -1);
  store.list = "";
  CHECK_THROWS_WITH(store.list_objects("a"), ContainsSubstring("set list"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
