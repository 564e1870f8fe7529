// SPDX-License-Identifier: Apache-2.0
#include "evolve/database.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "evolve/sqlite_types.h"
#include "gpu/driver/shared_library.h"
#include "numeric/fork_safe.h"

namespace octavo::evolve {
namespace {

Result<Sqlite> open_sqlite() {
  const char* const named = std::getenv("OCTAVO_SQLITE");
  const bool is_named = named != nullptr && *named != '\0';
  for (const char* name :
       {is_named ? named : "libsqlite3.so.0", is_named ? named : "libsqlite3.so"}) {
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    SymbolLoader loader([handle](const char* symbol) { return dlsym(handle, symbol); });
    const Sqlite api(loader);
    if (loader.missing().empty()) return api;
    return Status(ErrorCode::unsupported,
                  fmt::format("{} has no {}; supported: SQLite 3.", name, loader.missing()));
  }
  return Status(ErrorCode::unsupported,
                fmt::format("SQLite, which keeps the ledger, cannot be opened ({}); install "
                            "libsqlite3-0, or set OCTAVO_SQLITE to the library.",
                            is_named ? named : "libsqlite3.so.0"));
}

// Only its functions are kept, which a child of fork() may call too.
const Result<Sqlite>& sqlite() {
  static constinit MadeOnce<Result<Sqlite>> opened;
  return opened.get(open_sqlite);
}

int bind(const Sqlite& api, SqliteStatementHandle* statement, int index, const Value& value) {
  switch (value.kind()) {
    case Value::Kind::null:
      return api.bind_null(statement, index);
    case Value::Kind::integer:
      return api.bind_int64(statement, index, value.integer());
    case Value::Kind::real:
      return api.bind_double(statement, index, value.real());
    case Value::Kind::text:
      return api.bind_text(statement, index, value.text().data(),
                           static_cast<int>(value.text().size()), nullptr);  // outlives the call
  }
  return sqlite_code::kError;
}

Value column(const Sqlite& api, SqliteStatementHandle* statement, int index) {
  switch (api.column_type(statement, index)) {
    case sqlite_code::kInteger:
      return Value(static_cast<std::int64_t>(api.column_int64(statement, index)));
    case sqlite_code::kFloat:
      return Value(api.column_double(statement, index));
    case sqlite_code::kNull:
      return {};
    default:
      break;
  }
  const unsigned char* const text = api.column_text(statement, index);
  const int bytes = api.column_bytes(statement, index);
  return Value(text == nullptr ? std::string()
                               : std::string(reinterpret_cast<const char*>(text),
                                             static_cast<std::size_t>(bytes)));
}

struct Statement {
  const Sqlite& api;
  SqliteStatementHandle* handle = nullptr;
  explicit Statement(const Sqlite& sqlite_api) : api(sqlite_api) {}
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() {
    if (handle != nullptr) (void)api.finalize(handle);
  }
};

}  // namespace

Result<std::string> sqlite_version() {
  if (!sqlite().ok()) return sqlite().status();
  return std::string(sqlite()->libversion());
}

Result<Database> Database::open(const std::string& path, Open how) {
  if (!sqlite().ok()) return sqlite().status();
  const Sqlite& api = *sqlite();
  const int flags = how == Open::read_only ? sqlite_code::kOpenReadOnly
                    : how == Open::existing
                        ? sqlite_code::kOpenReadWrite
                        : sqlite_code::kOpenReadWrite | sqlite_code::kOpenCreate;
  SqliteHandle* handle = nullptr;
  const int code = api.open(path.c_str(), &handle, flags, nullptr);
  Database database(handle, path);
  if (code != sqlite_code::kOk) return database.failure();
  constexpr int kWaitMs = 5000;
  (void)api.busy_timeout(handle, kWaitMs);
  // Reads the header: a file that is no database fails here, with its name.
  OCTAVO_RETURN_IF_ERROR(database.run("SELECT count(*) FROM sqlite_master"));
  return database;
}

Database::Database(Database&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), path_(std::move(other.path_)) {}

Database& Database::operator=(Database&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(path_, other.path_);
  return *this;
}

Database::~Database() {
  if (handle_ != nullptr) (void)sqlite()->close(handle_);
}

Status Database::failure() const {
  return {ErrorCode::device_error,
          fmt::format("the ledger {}: {}.", printable(path_),
                      handle_ == nullptr ? "not enough memory" : sqlite()->errmsg(handle_))};
}

Result<std::vector<Row>> Database::query(std::string_view sql, const Row& parameters) const {
  const Sqlite& api = *sqlite();
  Statement statement(api);
  if (api.prepare(handle_, sql.data(), static_cast<int>(sql.size()), &statement.handle, nullptr) !=
      sqlite_code::kOk)
    return failure();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (bind(api, statement.handle, static_cast<int>(i) + 1, parameters[i]) != sqlite_code::kOk)
      return failure();
  std::vector<Row> rows;
  int code = api.step(statement.handle);
  for (; code == sqlite_code::kRow; code = api.step(statement.handle)) {
    Row row;
    const int columns = api.column_count(statement.handle);
    for (int i = 0; i < columns; ++i) row.push_back(column(api, statement.handle, i));
    rows.push_back(std::move(row));
  }
  if (code != sqlite_code::kDone) return failure();
  return rows;
}

Status Database::run(std::string_view sql, const Row& parameters) const {
  return query(sql, parameters).status();
}

Status Database::script(const std::string& sql) const {
  if (sqlite()->exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) != sqlite_code::kOk)
    return failure();
  return {};
}

Result<Transaction> Transaction::begin(const Database& database) {
  // IMMEDIATE: a second writer fails here, not in the middle.
  OCTAVO_RETURN_IF_ERROR(database.run("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_ != nullptr) (void)database_->run("ROLLBACK");
}

Status Transaction::commit() {
  const Status status = database_->run("COMMIT");
  if (status.ok()) database_ = nullptr;
  return status;
}

}  // namespace octavo::evolve
