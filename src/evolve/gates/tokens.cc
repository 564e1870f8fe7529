// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/tokens.h"

#include <algorithm>
#include <array>
#include <string>

namespace octavo::evolve {
namespace {

bool begins_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool in_word(char c) { return begins_word(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(source) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) step();
    return std::move(tokens_);
  }

 private:
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  void advance(std::size_t count) {
    for (; count > 0 && at_ < text_.size(); --count, ++at_)
      if (text_[at_] == '\n') ++line_;
  }

  void step() {
    const char c = peek();
    if (c == '\n') {
      // A backslash continues a directive.
      if (at_ == 0 || text_[at_ - 1] != '\\') directive_ = false;
      fresh_line_ = true;
      advance(1);
    } else if (c == ' ' || c == '\t') {
      advance(1);
    } else if (c == '/' && peek(1) == '/') {
      // A backslash at its end would continue a comment.
      while (at_ < text_.size() && !(peek() == '\n' && text_[at_ - 1] != '\\')) advance(1);
    } else if (c == '/' && peek(1) == '*') {
      advance(2);
      while (at_ < text_.size() && !(peek() == '*' && peek(1) == '/')) advance(1);
      advance(2);
    } else {
      if (c == '#' && fresh_line_) directive_ = true;
      fresh_line_ = false;
      token(c);
    }
  }

  void token(char c) {
    const std::size_t begin = at_;
    const int line = line_;
    Token::Kind kind = Token::Kind::mark;
    if (begins_word(c)) {
      kind = Token::Kind::word;
      while (in_word(peek())) advance(1);
      const std::string_view word = text_.substr(begin, at_ - begin);
      if (peek() == '"' && word.ends_with('R')) {
        kind = Token::Kind::literal;
        raw_literal();
      }
    } else if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
      kind = Token::Kind::number;
      number();
    } else if (c == '"' || c == '\'') {
      kind = Token::Kind::literal;
      literal(c);
    } else {
      advance(is_pair() ? 2 : 1);
    }
    tokens_.push_back({kind, text_.substr(begin, at_ - begin), line, directive_});
  }

  void number() {
    while (in_word(peek()) || peek() == '.' || (peek() == '\'' && in_word(peek(1))) ||
           ((peek() == '+' || peek() == '-') && is_exponent(text_[at_ - 1])))
      advance(1);
  }
  static bool is_exponent(char c) { return c == 'e' || c == 'E' || c == 'p' || c == 'P'; }

  void literal(char quote) {
    advance(1);
    while (at_ < text_.size() && peek() != quote && peek() != '\n') advance(peek() == '\\' ? 2 : 1);
    advance(1);
  }
  void raw_literal() {
    const std::size_t open = std::min(text_.find('(', at_), text_.size());
    std::string end = ")";
    end += text_.substr(at_ + 1, open - at_ - 1);
    end += '"';
    const std::size_t close = text_.find(end, open);
    advance(close == std::string_view::npos ? text_.size() - at_ : close + end.size() - at_);
  }

  bool is_pair() const {
    static constexpr std::array<std::string_view, 20> kPairs = {
        "::", "->", "==", "!=", "<=", ">=", "&&", "||", "++", "--",
        "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<", "[["};
    return std::find(kPairs.begin(), kPairs.end(), text_.substr(at_, 2)) != kPairs.end();
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool fresh_line_ = true, directive_ = false;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).run(); }

}  // namespace octavo::evolve
