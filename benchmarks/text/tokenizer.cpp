// Claims: a text of 10 MB is encoded in no more time than by Hugging Face's tokenizers, and lines
// of it as a batch in at most 1/1.5 of the time. One thread, CPU time.
//
// Usage: benchmark_tokenizer TOKENIZER.JSON TEXT. Prints one line of JSON: the seconds of the whole
// text and of its lines, medians of 3, and the numbers of tokens. tokenizers_side.py is the peer.

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <tutti/text/tokenizer.hpp>

namespace {

double seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

template <class Encode>
double median_of_three(Encode&& encode) {
  std::vector<double> times;
  for (int i = 0; i < 3; ++i) {
    const double start = seconds();
    encode();
    times.push_back(seconds() - start);
  }
  std::sort(times.begin(), times.end());
  return times[1];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s TOKENIZER.JSON TEXT\n", argv[0]);
    return 2;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  // A tokenizer remembers pieces; each time begins with one that has seen none, as the first text.
  std::size_t whole_tokens = 0;
  std::size_t line_tokens = 0;
  const double whole = median_of_three(
      [&] { whole_tokens = tutti::text::Tokenizer::load(argv[1]).encode(text).ids.size(); });
  const double loading = median_of_three([&] { tutti::text::Tokenizer::load(argv[1]); });
  const double batch = median_of_three([&] {
    const auto tokenizer = tutti::text::Tokenizer::load(argv[1]);
    line_tokens = 0;
    for (const auto& encoding : tokenizer.encode_batch(lines)) {
      line_tokens += encoding.ids.size();
    }
  });
  std::printf("{\"whole\": %.4f, \"lines\": %.4f, \"whole_tokens\": %zu, \"line_tokens\": %zu}\n",
              whole - loading, batch - loading, whole_tokens, line_tokens);
}
