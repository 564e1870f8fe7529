// SPDX-License-Identifier: Apache-2.0
// The tokens of device sources, for rules about what a patch adds and removes. Comments and the
// contents of literals are not code, whatever they say.
#pragma once

#include <string_view>
#include <vector>

namespace octavo::evolve {

struct Token {
  enum class Kind : unsigned char { word, number, literal, mark };
  Kind kind = Kind::mark;
  std::string_view text;   // into the source; of a mark one or two characters: "==", "[", "->"
  int line = 0;            // from 1
  bool directive = false;  // on a line of the preprocessor
  bool is(std::string_view what) const { return text == what; }
};

// The source must outlive the tokens.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace octavo::evolve
