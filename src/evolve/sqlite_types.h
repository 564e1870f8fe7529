// SPDX-License-Identifier: Apache-2.0
// The functions of libsqlite3 that are used, and their codes. The test database_test.cc compares
// them with sqlite3.h where that is installed.
#pragma once

#include <cstdint>

#include "evolve/database.h"
#include "gpu/driver/shared_library.h"

namespace octavo::evolve {

namespace sqlite_code {
inline constexpr int kOk = 0, kError = 1, kRow = 100, kDone = 101;
inline constexpr int kInteger = 1, kFloat = 2, kText = 3, kNull = 5;
inline constexpr int kOpenReadOnly = 1, kOpenReadWrite = 2, kOpenCreate = 4;
}  // namespace sqlite_code

struct Sqlite {
  explicit Sqlite(SymbolLoader& from) : from_(&from) { from_ = nullptr; }

 private:
  SymbolLoader* from_;  // first: the members below are initialised through it; then null

 public:
  // clang-format off
  const char* (*libversion)() = from_->needed("sqlite3_libversion");
  int (*open)(const char*, SqliteHandle**, int, const char*) = from_->needed("sqlite3_open_v2");
  int (*close)(SqliteHandle*) = from_->needed("sqlite3_close");
  const char* (*errmsg)(SqliteHandle*) = from_->needed("sqlite3_errmsg");
  int (*busy_timeout)(SqliteHandle*, int) = from_->needed("sqlite3_busy_timeout");
  int (*exec)(SqliteHandle*, const char*, int (*)(void*, int, char**, char**), void*, char**) = from_->needed("sqlite3_exec");
  int (*prepare)(SqliteHandle*, const char*, int, SqliteStatementHandle**, const char**) = from_->needed("sqlite3_prepare_v2");
  int (*finalize)(SqliteStatementHandle*) = from_->needed("sqlite3_finalize");
  int (*step)(SqliteStatementHandle*) = from_->needed("sqlite3_step");
  int (*bind_null)(SqliteStatementHandle*, int) = from_->needed("sqlite3_bind_null");
  int (*bind_int64)(SqliteStatementHandle*, int, long long) = from_->needed("sqlite3_bind_int64");
  int (*bind_double)(SqliteStatementHandle*, int, double) = from_->needed("sqlite3_bind_double");
  int (*bind_text)(SqliteStatementHandle*, int, const char*, int, void (*)(void*)) = from_->needed("sqlite3_bind_text");
  int (*column_count)(SqliteStatementHandle*) = from_->needed("sqlite3_column_count");
  int (*column_type)(SqliteStatementHandle*, int) = from_->needed("sqlite3_column_type");
  long long (*column_int64)(SqliteStatementHandle*, int) = from_->needed("sqlite3_column_int64");
  double (*column_double)(SqliteStatementHandle*, int) = from_->needed("sqlite3_column_double");
  const unsigned char* (*column_text)(SqliteStatementHandle*, int) = from_->needed("sqlite3_column_text");
  int (*column_bytes)(SqliteStatementHandle*, int) = from_->needed("sqlite3_column_bytes");
  // clang-format on
};

}  // namespace octavo::evolve
