// SPDX-License-Identifier: Apache-2.0
// SQLite through its C library, opened at run time like the other libraries that only some
// machines have.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::evolve {

struct SqliteHandle;           // sqlite3
struct SqliteStatementHandle;  // sqlite3_stmt

// One value of a row. Null is a value of its own, so that "not measured" is never 0.
class Value {
 public:
  enum class Kind : std::uint8_t { null, integer, real, text };
  Value() = default;
  Value(std::int64_t value) : kind_(Kind::integer), integer_(value) {}      // NOLINT: a variant
  Value(int value) : Value(std::int64_t{value}) {}                          // NOLINT
  Value(double value) : kind_(Kind::real), real_(value) {}                  // NOLINT
  Value(std::string value) : kind_(Kind::text), text_(std::move(value)) {}  // NOLINT
  Value(std::string_view value) : Value(std::string(value)) {}              // NOLINT
  Value(const char* value) : Value(std::string(value)) {}                   // NOLINT
  Value(std::optional<double> value) {                                      // NOLINT
    if (value) *this = Value(*value);
  }

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  std::int64_t integer() const {
    return kind_ == Kind::real ? static_cast<std::int64_t>(real_) : integer_;
  }
  double real() const { return kind_ == Kind::integer ? static_cast<double>(integer_) : real_; }
  const std::string& text() const { return text_; }  // empty if it is not text
  std::optional<double> maybe() const {
    return is_null() ? std::nullopt : std::optional<double>(real());
  }

 private:
  Kind kind_ = Kind::null;
  std::int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
};
using Row = std::vector<Value>;

// The version of the library, or why it cannot be opened.
Result<std::string> sqlite_version();

class Database {
 public:
  enum class Open : std::uint8_t { create, existing, read_only };
  // One process writes at a time; another one gets an error after five seconds.
  static Result<Database> open(const std::string& path, Open how);
  Database(Database&& other) noexcept;
  Database& operator=(Database&& other) noexcept;
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  // Runs one statement with its parameters, and returns the rows of its result.
  Result<std::vector<Row>> query(std::string_view sql, const Row& parameters = {}) const;
  Status run(std::string_view sql, const Row& parameters = {}) const;
  // Runs several statements without parameters.
  Status script(const std::string& sql) const;

 private:
  explicit Database(SqliteHandle* handle, std::string path)
      : handle_(handle), path_(std::move(path)) {}
  Status failure() const;

  SqliteHandle* handle_ = nullptr;
  std::string path_;
};

// Rolls back unless commit() was called: a killed process leaves the state before or after.
class Transaction {
 public:
  static Result<Transaction> begin(const Database& database);
  Transaction(Transaction&& other) noexcept : database_(other.database_) {
    other.database_ = nullptr;
  }
  Transaction& operator=(Transaction&&) = delete;
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();
  Status commit();

 private:
  explicit Transaction(const Database& database) : database_(&database) {}
  const Database* database_;
};

}  // namespace octavo::evolve
