// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "evolve/gates/source_diff.h"

namespace octavo::evolve {
namespace {

using Tokens = std::vector<Token>;
using Place = SourceDiff::Place;
using Finding = std::optional<std::string>;

std::string at(const Place& place) {
  if (!place.added) return fmt::format("removes '{}' ({})", place.what, place.file);
  return fmt::format("adds '{}' (line {} of {})", place.what, place.line, place.file);
}

template <std::size_t n>
bool is_one_of(std::string_view word, const std::array<std::string_view, n>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

const Token& token_at(const Tokens& tokens, std::size_t i) {
  static constexpr Token kNone{};
  return i < tokens.size() ? tokens[i] : kNone;
}

// The first word that the patch adds and `refused` names.
Finding added_word(const SourceDiff& diff, const std::function<bool(std::string_view)>& refused) {
  const auto places = diff.changes([&](const Tokens& tokens, std::size_t i) {
    const Token& t = tokens[i];
    return t.kind == Token::Kind::word && refused(t.text) ? std::string(t.text) : std::string();
  });
  for (const Place& place : places)
    if (place.added) return at(place);
  return {};
}

// --- files
// ----------------------------------------------------------------------------------------

constexpr std::array<std::string_view, 9> kFolders = {
    "device/core/",     "device/tile/",  "device/sm80/",     "device/sm90/",  "device/decode/",
    "device/quantize/", "device/cache/", "device/backward/", "device/ladder/"};
// Host code is compiled with these, so a kernel would no longer agree with its launch.
constexpr std::array<std::string_view, 4> kReadByHost = {
    "device/ladder/problem.cuh", "device/backward/row_stats.cuh",
    "device/backward/sink_gradients.cuh", "device/sm90/backward/finish_dq.cuh"};

Finding changed_files(const SourceDiff& diff) {
  for (const SourceTokens& file : diff.files()) {
    const std::string& name = file.source->name;
    if (std::none_of(kFolders.begin(), kFolders.end(),
                     [&](std::string_view folder) { return name.starts_with(folder); }))
      return fmt::format("changes {}", name);
    if (name.ends_with("/params.cuh") || is_one_of(name, kReadByHost))
      return fmt::format("changes {}, which host code reads too", name);
  }
  return {};
}

Finding size(const SourceDiff& diff) {
  constexpr std::ptrdiff_t kMostAdded = 1500;
  std::ptrdiff_t added = 0;
  for (const SourceTokens& file : diff.files()) {
    const auto lines = [](const std::string& s) { return std::count(s.begin(), s.end(), '\n'); };
    added += lines(file.source->after) - lines(file.source->before);
  }
  if (added > kMostAdded) return fmt::format("adds {} lines", added);
  return {};
}

// --- the language
// ---------------------------------------------------------------------------------

// A directive as one text: "#include\"device/core/exp2.cuh\"".
std::string directive_at(const Tokens& tokens, std::size_t i) {
  if (!tokens[i].directive || !tokens[i].is("#")) return {};
  if (i > 0 && tokens[i - 1].directive && tokens[i - 1].line == tokens[i].line) return {};
  std::string text;
  for (std::size_t j = i; j < tokens.size() && tokens[j].directive; ++j) {
    if (j > i && tokens[j].is("#") && tokens[j].line != tokens[j - 1].line) break;
    text += tokens[j].text;
  }
  return text;
}
Finding directives(const SourceDiff& diff) {
  for (const Place& place : diff.changes(directive_at)) {
    constexpr std::string_view kInclude = "#include\"";
    if (place.what.starts_with(kInclude)) {
      if (!place.added) continue;
      std::string_view name = std::string_view(place.what).substr(kInclude.size());
      if (name.ends_with('"')) name.remove_suffix(1);
      const bool ours = name.starts_with("device/") || name.starts_with("config/");
      if (ours && find_embedded_source(name) != nullptr &&
          !name.starts_with("device/conformance/") && !name.starts_with("device/oracle/"))
        continue;
    }
    return at(place);
  }
  return {};
}

std::ptrdiff_t spliced_lines(std::string_view text) {
  std::ptrdiff_t count = 0;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos;
       end = text.find('\n', end + 1)) {
    const std::size_t last = text.find_last_not_of(" \t", end - (end > 0));
    count += end > 0 && last != std::string_view::npos && text[last] == '\\';
  }
  return count;
}
Finding spelling(const SourceDiff& diff) {
  for (const SourceTokens& file : diff.files())
    if (spliced_lines(file.source->after) > spliced_lines(file.source->before))
      return fmt::format("adds a line that ends with a backslash to {}", file.source->name);
  for (const Place& place : diff.changes([](const Tokens&tokens, std::size_t i) -> std::string {
         if (tokens[i].is("\\")) return "\\";
         return tokens[i].is("%") && token_at(tokens, i + 1).is(":") ? "%:" : "";
       }))
    if (place.added) return at(place);
  return {};
}

Finding assembly(const SourceDiff& diff) {
  return added_word(diff, [](std::string_view word) {
    return word == "asm" || word == "__asm" || word == "__asm__";
  });
}

// Names that belong to compilers, to CUDA and to the boundary between a GPU and the emulator.
Finding reserved_names(const SourceDiff& diff) {
  static constexpr std::array<std::string_view, 11> kBoundary = {
      "threadIdx", "blockIdx",   "blockDim",        "gridDim",     "warpSize",   "emulator",
      "Site",      "OCTAVO_PTX", "OCTAVO_AND_SITE", "OCTAVO_SITE", "OCTAVO_BODY"};
  return added_word(diff, [](std::string_view word) {
    if (word == "__builtin_bit_cast" || word == "__builtin_huge_valf") return false;
    return word.find("__") != std::string_view::npos || is_one_of(word, kBoundary);
  });
}

Finding attributes(const SourceDiff& diff) {
  for (const Place& place : diff.changes([](const Tokens&tokens, std::size_t i) -> std::string {
         if (!tokens[i].is("[[")) return "";
         return fmt::format("[[{}", token_at(tokens, i + 1).text);
       }))
    if (place.added && place.what != "[[maybe_unused" && place.what != "[[fallthrough")
      return at(place);
  return {};
}

Finding host_calls(const SourceDiff& diff) {
  static constexpr std::array<std::string_view, 22> kWords = {
      "std",    "new",    "delete", "malloc", "calloc", "free",   "throw", "try",
      "catch",  "typeid", "printf", "fopen",  "open",   "fork",   "vfork", "clone",
      "system", "execve", "dlopen", "dlsym",  "socket", "syscall"};
  return added_word(diff, [](std::string_view word) { return is_one_of(word, kWords); });
}

// --- time and memory
// ------------------------------------------------------------------------------

Finding clocks(const SourceDiff& diff) {
  return added_word(diff, [](std::string_view word) {
    for (const std::string_view part : {"clock", "globaltimer", "nanosleep", "elapsed", "smid"})
      if (word.find(part) != std::string_view::npos) return true;
    return false;
  });
}

Finding state(const SourceDiff& diff) {
  static constexpr std::array<std::string_view, 5> kWords = {"thread_local", "extern", "volatile",
                                                             "mutable", "constinit"};
  if (Finding found =
          added_word(diff, [](std::string_view word) { return is_one_of(word, kWords); }))
    return found;
  for (const Place& place : diff.changes([](const Tokens&tokens, std::size_t i) -> std::string {
         if (!tokens[i].is("static")) return "";
         const std::string_view next = token_at(tokens, i + 1).text;
         const bool constant =
             next == "constexpr" || next == "OCTAVO_DEVICE" || next == "OCTAVO_HD";
         return constant ? "" : fmt::format("static {}", next);
       }))
    if (place.added) return at(place);
  return {};
}

// The last token of "template <...>".
std::size_t end_of_template(const Tokens& tokens, std::size_t i) {
  int open = 0;
  for (++i; i < tokens.size(); ++i) {
    if (tokens[i].is("<")) ++open;
    if (tokens[i].is(">") && --open == 0) break;
  }
  return i;
}

// The statements at namespace scope, as "first words ...", that declare neither a type nor a
// function nor a constant.
std::vector<std::string> namespace_variables(const Tokens& tokens) {
  static constexpr std::array<std::string_view, 10> kHarmless = {
      "constexpr", "using",     "static_assert", "OCTAVO_DEVICE", "OCTAVO_HD",
      "concept",   "namespace", "OCTAVO_KERNEL", "typedef",       "requires"};
  static constexpr std::array<std::string_view, 4> kTypes = {"struct", "class", "enum", "union"};
  std::vector<std::string> found;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].directive || tokens[i].is(";") || tokens[i].is("}")) continue;
    std::size_t depth = 0, words = 0;
    bool harmless = false, type = false, body = false, after_body = false, scope = false;
    std::string text;
    for (; i < tokens.size(); ++i) {
      const Token& t = tokens[i];
      if (t.directive) continue;
      if (depth == 0 && t.is(";")) break;
      if (t.is("{")) {
        scope = depth == 0 && !text.empty() && text.starts_with("namespace");
        if (scope) break;  // what follows is again at namespace scope
        ++depth, body = true;
      } else if (t.is("}")) {
        if (depth > 0) --depth;
        if (depth == 0 && (!type || harmless)) break;  // the body of a function
      } else if (depth == 0 && t.is("template")) {
        i = end_of_template(tokens, i);
      } else if (depth == 0) {
        harmless = harmless || is_one_of(t.text, kHarmless);
        type = type || is_one_of(t.text, kTypes);
        after_body = after_body || body;
        if (++words <= 6) text += fmt::format("{}{}", text.empty() ? "" : " ", t.text);
      }
    }
    const bool only_type = type && !after_body;
    if (!scope && !text.empty() && !harmless && !only_type) found.push_back(text);
  }
  return found;
}
Finding globals(const SourceDiff& diff) {
  for (const SourceTokens& file : diff.files()) {
    std::vector<std::string> before = namespace_variables(file.before);
    for (const std::string& variable : namespace_variables(file.after)) {
      const auto known = std::find(before.begin(), before.end(), variable);
      if (known == before.end())
        return fmt::format("adds the variable '{}' to {}", variable, file.source->name);
      before.erase(known);
    }
  }
  return {};
}

Finding raw_memory(const SourceDiff& diff) {
  static constexpr std::array<std::string_view, 7> kPointers = {"q",   "k",   "v",   "o",
                                                                "out", "lse", "data"};
  for (const Place& place : diff.changes([](const Tokens&tokens, std::size_t i) -> std::string {
         const Token& t = tokens[i];
         if (t.is("const_cast")) return "const_cast";
         // A view of registers, reinterpret_cast<float(*)[4]>, reaches no memory.
         if (t.is("reinterpret_cast"))
           return token_at(tokens, i + 3).is("(") && token_at(tokens, i + 4).is("*")
                      ? ""
                      : "reinterpret_cast";
         if (t.is(".") && is_one_of(token_at(tokens, i + 1).text, kPointers) &&
             token_at(tokens, i + 2).is("["))
           return fmt::format(".{}[", tokens[i + 1].text);
         if (t.is("*") && token_at(tokens, i + 2).is(".") &&
             is_one_of(token_at(tokens, i + 3).text, kPointers) && i > 0 &&
             tokens[i - 1].kind == Token::Kind::mark && !tokens[i - 1].is(")"))
           return fmt::format("*{}.{}", tokens[i + 1].text, tokens[i + 3].text);
         return "";
       }))
    if (place.added) return at(place);
  return {};
}

// --- shapes
// ---------------------------------------------------------------------------------------

// Sizes that a kernel only knows when it runs.
constexpr std::array<std::string_view, 13> kSizes = {
    "seqlen_q",  "seqlen_kv", "heads_q",   "heads_kv", "heads_per_kv", "tokens_q", "tokens_kv",
    "sequences", "batch",     "row_tiles", "tiles",    "grid_size_x",  "n_blocks"};

long long integer(const Token& t) {
  if (t.kind != Token::Kind::number) return -1;
  std::string digits(t.text);
  std::erase(digits, '\'');
  const bool hex = digits.starts_with("0x") || digits.starts_with("0X");
  long long value = -1;
  const char* const begin = digits.data() + (hex ? 2 : 0);
  (void)std::from_chars(begin, digits.data() + digits.size(), value, hex ? 16 : 10);
  return value;
}
bool is_constant_name(const Token& t) {
  return t.kind == Token::Kind::word && t.text.size() > 1 && t.text[0] == 'k' && t.text[1] >= 'A' &&
         t.text[1] <= 'Z';
}
// Whether `other` beside a run-time size singles out a shape.
bool singles_out(std::string_view mark, const Token& other) {
  constexpr std::array<std::string_view, 2> kEqual = {"==", "!="};
  constexpr std::array<std::string_view, 9> kOrder = {"<", ">", "<=", ">=", "-",
                                                      "+", "^", "&",  "%"};
  if (is_one_of(mark, kEqual)) return integer(other) > 1 || is_constant_name(other);
  if (mark == "%") return integer(other) > 64;
  return is_one_of(mark, kOrder) && integer(other) > 1;
}
std::string special_case_at(const Tokens& tokens, std::size_t i) {
  const Token& t = tokens[i];
  const auto text = [&](std::size_t from, std::size_t count) {
    std::string joined;
    for (std::size_t j = from; j < from + count; ++j) joined += token_at(tokens, j).text;
    return joined;
  };
  if (is_one_of(t.text, kSizes)) {
    std::size_t end = i + 1;
    while (token_at(tokens, end).is("(") || token_at(tokens, end).is(")")) ++end;
    if (singles_out(token_at(tokens, end).text, token_at(tokens, end + 1)))
      return text(i, end + 2 - i);
    // "512 == p.seqlen_kv": over what names the object.
    std::size_t begin = i;
    while (begin >= 2 && (tokens[begin - 1].is(".") || tokens[begin - 1].is("->"))) begin -= 2;
    if (begin >= 2 && singles_out(tokens[begin - 1].text, tokens[begin - 2]) &&
        !tokens[begin - 1].is("-") && !tokens[begin - 1].is("+"))
      return text(begin - 2, i + 3 - begin);
    if (begin >= 2 && tokens[begin - 1].is("(") && tokens[begin - 2].is("switch"))
      return fmt::format("switch({})", t.text);
  }
  // Equality with a large number singles out something, whatever it is called.
  constexpr long long kLarge = 64;
  if ((t.is("==") || t.is("!=")) && integer(token_at(tokens, i + 1)) >= kLarge) return text(i, 2);
  if (i > 0 && (t.is("==") || t.is("!=")) && integer(tokens[i - 1]) >= kLarge)
    return text(i - 1, 2);
  return {};
}
Finding shapes(const SourceDiff& diff) {
  for (const Place& place : diff.changes(special_case_at))
    if (place.added) return at(place);
  return {};
}

// --- numbers
// --------------------------------------------------------------------------------------

Finding precision(const SourceDiff& diff) {
  return added_word(diff, [](std::string_view word) {
    for (const std::string_view part :
         {"e4m3", "e5m2", "int8", "int4", "sim8", "f16x2", "_in_f16", "_s8", "f16_fast"})
      if (word.find(part) != std::string_view::npos) return true;
    return false;
  });
}

bool is_float(const Token& t) {
  if (t.kind != Token::Kind::number) return false;
  const bool hex = t.text.starts_with("0x") || t.text.starts_with("0X");
  if (hex) return t.text.find('p') != std::string_view::npos || t.text.size() >= 6;
  return t.text.find_first_of(".eEf") != std::string_view::npos;
}
// "kHeadroomLog2=8": constants that set how numbers are rounded and when sums are rescaled.
std::string numeric_constant_at(const Tokens& tokens, std::size_t i) {
  const Token& t = tokens[i];
  if (is_float(t)) return std::string(t.text);
  if (!is_constant_name(t) || !token_at(tokens, i + 1).is("=")) return {};
  bool numeric = false;
  for (const std::string_view part : {"Log2", "Promot", "Headroom", "Lowest", "Infinity", "Bias",
                                      "Magic", "Fraction", "Huge", "Scale"})
    numeric = numeric || t.text.find(part) != std::string_view::npos;
  if (!numeric) return {};
  std::string text(t.text);
  for (std::size_t j = i + 1; j < tokens.size() && !tokens[j].is(";") && !tokens[j].is(","); ++j)
    text += tokens[j].text;
  return text;
}
Finding constants(const SourceDiff& diff) {
  for (const Place& place : diff.changes(numeric_constant_at))
    if (!place.added) return at(place);
  return {};
}

// --- what checks the kernel
// -----------------------------------------------------------------------

Finding checks(const SourceDiff& diff) {
  for (const Place& place : diff.changes([](const Tokens&tokens, std::size_t i) -> std::string {
         const Token& t = tokens[i];
         if (t.is("static_assert") || t.is("spare") || t.is("OCTAVO_KERNEL"))
           return std::string(t.text);
         return "";
       })) {
    const bool assertion = place.what == "static_assert";
    if (place.added != assertion) return at(place);
    if (place.what == "OCTAVO_KERNEL") return at(place);
  }
  return {};
}

struct Rule {
  PolicyRule text;
  Finding (*judge)(const SourceDiff&);
};

constexpr std::array<Rule, 16> kRules = {{
    {{"files",
      "Only the sources of kernels may change: host code reads the others, and the emulator has "
      "its "
      "own definition of device/ptx, so no gate would see a change there."},
     changed_files},
    {{"size", "A patch is a change that can be read."}, size},
    {{"directives",
      "The compilers of the GPU and of the emulator must see the same text, so no directive may be "
      "added or removed but an include of a device source."},
     directives},
    {{"spelling", "Spliced lines and digraphs hide code from a reader."}, spelling},
    {{"assembly", "Inline assembly belongs to device/ptx, where the emulator knows it."}, assembly},
    {{"reserved_names",
      "These names tell a GPU from the emulator, or reach around the wrappers that it checks."},
     reserved_names},
    {{"attributes", "An attribute can run code when the kernel is loaded, or bend its meaning."},
     attributes},
    {{"host_calls", "A kernel calls nothing of the host."}, host_calls},
    {{"clocks", "A kernel that reads a clock or its place on the chip can tell that it is timed."},
     clocks},
    {{"state", "A kernel that remembers earlier calls can return their results."}, state},
    {{"globals", "A variable outside a function outlives the launch, so it can remember results."},
     globals},
    {{"raw_memory",
      "Memory is accessed through the wrappers of device/ptx, which the emulator checks."},
     raw_memory},
    {{"shapes",
      "A kernel that recognises a size can be right or fast for the sizes of a test alone."},
     shapes},
    {{"precision", "A candidate may not round to fewer bits than the kernel that it replaces."},
     precision},
    {{"constants", "These constants set how the kernel rounds."}, constants},
    {{"checks",
      "Assertions stay, and no wait may be declared spare: these are what finds a wrong change."},
     checks},
}};

// Those above, and the rule of judge_config.
constexpr auto kRuleTexts = [] {
  std::array<PolicyRule, kRules.size() + 1> all{};
  for (std::size_t i = 0; i < kRules.size(); ++i) all[i] = kRules[i].text;
  all.back() = {"formats",
                "A candidate computes what it replaces: the same types, and no less precisely."};
  return all;
}();

}  // namespace

std::span<const PolicyRule> policy_rules() { return kRuleTexts; }

std::optional<PolicyFinding> judge_patch(const Patched& patched) {
  if (patched.sources.empty()) return {};
  const SourceDiff diff(patched);
  for (const Rule& rule : kRules)
    if (const Finding finding = rule.judge(diff))
      return PolicyFinding{rule.text.name,
                           fmt::format("The patch {}. {}", printable(*finding), rule.text.reason)};
  return {};
}

}  // namespace octavo::evolve
