// Looks up functions of a library that is opened at run time.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace octavo {

// Looks up symbols and remembers the first required one that is missing.
class SymbolLoader {
 public:
  using Find = std::function<void*(const char*)>;
  explicit SymbolLoader(Find find) : find_(std::move(find)) {}

  // Converts to the type of the function pointer that it initialises.
  struct Symbol {
    void* address = nullptr;
    template <class F>
    requires std::is_function_v<F>
    operator F*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<F*>(address);
    }
  };
  Symbol needed(const char* name) {
    void* const address = find_(name);
    if (address == nullptr && missing_.empty()) missing_ = name;
    return {address};
  }
  Symbol optional(const char* name) { return {find_(name)}; }

  const std::string& missing() const { return missing_; }

 private:
  Find find_;
  std::string missing_;
};

}  // namespace octavo
