#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the site's reader of headers finds, and that faults of pages and headers end a build.

    site.py <cmake/site> <work folder> <cmake>

The second part needs mkdocs-material and is skipped without.
"""
import pathlib
import re
import shutil
import subprocess
import sys

HEADER = '''// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>
/// What the header is for.
namespace tutti {
namespace detail {
struct Private {};
}
/// A concept.
template <class T>
concept Sized = requires(const T& t) { t.size(); } && requires { typename T::value_type; };
/// A function with a condition.
template <class T>
  requires(sizeof(T) > 1)
inline std::vector<T> twice(const T& x, std::vector<T> more = {}) { if (x) { return {x, x}; } return more; }
class Later;
/// A class; "a string with { in it" and 'c' do not matter.
template <class T, class U = std::vector<T>>
class Box final : public std::vector<T> {
 public:
  /// Holds `x`.
  explicit Box(T x, int n = 1'000) : x_{x}, text_(R"(a } in it)") { n_ = n; }
  /// Compares.
  bool operator<(const Box& other) const { return x_ < other.x_; }
  T value{};  ///< a member,
              ///< on two lines
  void hidden() {}
 private:
  /// Private.
  int secret() const;
  T x_;
};
/// Words.
enum class Word { first, second };  ///< and more
constexpr const char* to_string(Word word) { return word == Word::first ? "first" : "second"; }
/// Two functions below one block.
int one();
int two();
inline constexpr int undocumented = 3;
#if TUTTI_BODIES
inline int one() { return 1; }
#endif
}  // namespace tutti
'''

README = "# tutti\n\n## Documentation\n\n[All](docs/README.md)\n\n## Licence\n\n[It](LICENSE)\n"
GUIDE = "# Guide\n\nA `Box` holds, `tutti::twice` copies, `Unknown` and `one` are words. Text with a list:\n"
GUIDE += "- [here](guide.md#a-head)\n- [the header](../include/tutti/it.hpp)\n\n## A head\n"
MAP = "# Documentation\n\n## Reference\n\n- [Guide](guide.md)\n"


def reader(site):
    sys.path.insert(0, str(site))
    sys.dont_write_bytecode = True
    import headers
    entries = headers.read(HEADER)
    found = [(e.kind, e.name) for e in entries]
    assert found == [("summary", "tutti"), ("concept", "Sized"), ("function", "twice"), ("class", "Box"), ("enum", "Word"),
                     ("function", "to_string"), ("function", "one"), ("function", "two"), ("variable", "undocumented")], found
    box = entries[3]
    assert [(m.kind, m.name, m.doc) for m in box.entries] == [
        ("function", "Box", ["Holds `x`."]), ("function", "operator<", ["Compares."]),
        ("variable", "value", ["a member,", "on two lines"]), ("function", "hidden", [])], box.entries
    assert box.entries[0].text == "explicit Box(T x, int n = 1'000)", box.entries[0].text
    assert entries[4].doc == ["Words.", "and more"] and [m.name for m in entries[4].entries] == ["first", "second"]
    assert [e.name for e in entries if not e.doc and not e.beside and e.kind != "summary"] == ["to_string", "undocumented"]
    for broken in ("namespace tutti { int f()", "namespace tutti { } }", "namespace tutti { struct X { int a; }"):
        try:
            headers.read(broken)
        except (headers.Unreadable, ValueError, IndexError):
            continue
        raise AssertionError(f"this was read: {broken}")


def build(site, work, cmake, **changed):
    """What a build of a small tree says, with some of its files changed."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(site.parent, work / "cmake", ignore=shutil.ignore_patterns("__pycache__"))
    files = {"README.md": README, "LICENSE": "Free.\n", "docs/README.md": MAP, "docs/guide.md": GUIDE,
             "include/tutti/it.hpp": HEADER.replace("inline constexpr int undoc", "/// A number.\ninline constexpr int undoc"),
             **{name.replace("__", "/").replace("_md", ".md").replace("_hpp", ".hpp"): text for name, text in changed.items()}}
    for name, text in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    done = subprocess.run([cmake, f"-DPYTHON={sys.executable}", f"-DOUT={work}/out", "-P", work / "cmake/site/build.cmake"],
                          capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main():
    site, work, cmake = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    reader(site)
    code, said = build(site, work, cmake)
    if "skipped: " in said:
        print(said[said.index("skipped: "):].rstrip())
        sys.exit(77)
    assert code == 0, said
    page = (work / "out/guide.html").read_text()
    assert "<li>" in page and 'href="source/include/tutti/it.hpp.html"' in page, page
    asked = [str(path) for path in (work / "out").rglob("*.html")
             if re.search(r'<(script|link|img)[^>]*(src|href)="?https?:', path.read_text())]
    assert not asked, f"these pages ask other hosts: {asked}"
    for link, there in (("it.html#Box", True), ("it.html#twice", True), ("it.html#one", False), ("Unknown\"", False)):
        assert (f'href="reference/{link}' in page) == there, f"a link to {link}: expected {there} in {page}"
    reference = (work / "out/reference/it.html").read_text()
    for there in ('id="Box"', 'id="one"', "a member, on two lines"):
        assert there in reference, f"{there} is missing in {reference}"
    for hidden in ("Private.", "detail", "secret"):
        assert hidden not in reference, f"{hidden} is in {reference}"
    for fault, changed in {
            "'nowhere.md'": {"docs__guide_md": GUIDE + "[nowhere](nowhere.md)\n"},
            "no-such-head": {"docs__guide_md": GUIDE + "[here](guide.md#no-such-head)\n"},
            "../tests/none.cpp": {"docs__guide_md": GUIDE + "[outside](../tests/none.cpp)\n"},
            "undocumented is public and has no /// block": {"include__tutti__it_hpp": HEADER},
            "other.md": {"docs__other_md": "# A page that the map does not name\n"}}.items():
        code, said = build(site, work, cmake, **changed)
        assert code != 0 and fault in said, f"expected a fault with {fault}, got {code}:\n{said}"
    print("the reader finds what it should, and 5 faults end a build")


if __name__ == "__main__":
    main()
