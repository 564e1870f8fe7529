// SPDX-License-Identifier: Apache-2.0
#include "evolve/database.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "evolve/ledger.h"
#include "evolve/sqlite_types.h"
#ifdef OCTAVO_SQLITE_HEADER
#include <sqlite3.h>
#endif

namespace octavo::evolve {
namespace {

class EvolveDatabase : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/evolve_database_XXXXXX";
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_F(EvolveDatabase, KeepsValuesOfEveryKind) {
  const Result<Database> database = Database::open(root_ + "/a", Database::Open::create);
  ASSERT_TRUE(database.ok()) << database.status().message();
  ASSERT_TRUE(database->run("CREATE TABLE t(a, b, c, d)").ok());
  const std::string text = "it's \"text\"\n with a ; and \xc3\xa9";
  ASSERT_TRUE(
      database->run("INSERT INTO t VALUES(?,?,?,?)", {std::int64_t{1} << 60, 0.1, text, Value()})
          .ok());
  const Result<std::vector<Row>> rows = database->query("SELECT * FROM t");
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 1U);
  EXPECT_EQ((*rows)[0][0].integer(), std::int64_t{1} << 60);
  EXPECT_EQ((*rows)[0][1].real(), 0.1);
  EXPECT_EQ((*rows)[0][2].text(), text);
  EXPECT_TRUE((*rows)[0][3].is_null());
  EXPECT_FALSE((*rows)[0][3].maybe());
}

TEST_F(EvolveDatabase, RollsBackWhatIsNotCommitted) {
  const Result<Database> database = Database::open(root_ + "/a", Database::Open::create);
  ASSERT_TRUE(database->run("CREATE TABLE t(a)").ok());
  {
    const Result<Transaction> transaction = Transaction::begin(*database);
    ASSERT_TRUE(database->run("INSERT INTO t VALUES(1)").ok());
  }
  {
    Result<Transaction> transaction = Transaction::begin(*database);
    ASSERT_TRUE(database->run("INSERT INTO t VALUES(2)").ok());
    ASSERT_TRUE(transaction->commit().ok());
  }
  EXPECT_EQ((*database->query("SELECT a FROM t"))[0][0].integer(), 2);
}

TEST_F(EvolveDatabase, ErrorsHaveASentence) {
  EXPECT_FALSE(Database::open(root_ + "/none/a", Database::Open::create).ok());
  std::ofstream(root_ + "/text") << std::string(4096, 'x');
  const Result<Database> text = Database::open(root_ + "/text", Database::Open::existing);
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.status().message().find("not a database"), std::string::npos)
      << text.status().message();
  const Result<Database> database = Database::open(root_ + "/a", Database::Open::create);
  EXPECT_FALSE(database->run("no SQL").ok());
  EXPECT_FALSE(database->run("SELECT 1", {1, 2}).ok());  // too many parameters
}

TEST_F(EvolveDatabase, LedgersThatAreNot) {
  EXPECT_NE(Ledger::open(root_, true).status().message().find("without a run"), std::string::npos);
  const std::string path = root_ + "/run";
  ASSERT_TRUE(Ledger::create(path, {{"a", 1}}).ok());
  EXPECT_NE(Ledger::create(path, {{"a", 1}}).status().message().find("resume"), std::string::npos);
  const auto edit = [&](const char* sql) {
    ASSERT_TRUE(Database::open(ledger_path(path), Database::Open::existing)->run(sql).ok());
  };
  EXPECT_TRUE(Ledger::open(path, true)->read().ok());
  edit("INSERT INTO gates VALUES('c9',0,0,'policy','passed','','{}')");
  EXPECT_FALSE(Ledger::open(path, true)->read().ok());
  edit("DELETE FROM gates");
  edit("UPDATE run SET value='[[[' WHERE key='settings'");
  EXPECT_FALSE(Ledger::open(path, true)->read().ok());
  edit("UPDATE run SET value='9' WHERE key='schema'");
  EXPECT_EQ(Ledger::open(path, true).status().message(),
            "the ledger's schema is '9'; supported: 1.");
}

// A run that ended in the middle of a line of its log.
TEST_F(EvolveDatabase, TheLogGoesOnAfterHalfALine) {
  const std::string path = root_ + "/run";
  ASSERT_TRUE(Ledger::create(path, {{"a", 1}}).ok());
  std::ofstream(path + "/events.jsonl", std::ios::app) << "{\"event\":\"jud";
  Ledger::open(path, false)->log("resumed");
  std::ifstream log(path + "/events.jsonl");
  std::string line, last;
  int lines = 0;
  for (; std::getline(log, line); ++lines) last = line;
  EXPECT_EQ(lines, 3);
  EXPECT_NE(last.find("resumed"), std::string::npos);
}

#ifdef OCTAVO_SQLITE_HEADER
template <class Ours, class Theirs>
struct SameShape : std::false_type {};
// The handles have other names; everything else is the same.
template <class R, class... A, class S, class... B>
struct SameShape<R (*)(A...), S (*)(B...)>
    : std::bool_constant<sizeof...(A) == sizeof...(B) && sizeof(R) == sizeof(S) &&
                         ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                           std::is_floating_point_v<A> == std::is_floating_point_v<B>)&&...)> {};

TEST_F(EvolveDatabase, DeclarationsAreThoseOfTheHeader) {
  using namespace sqlite_code;
  EXPECT_EQ(kOk, SQLITE_OK);
  EXPECT_EQ(kError, SQLITE_ERROR);
  EXPECT_EQ(kRow, SQLITE_ROW);
  EXPECT_EQ(kDone, SQLITE_DONE);
  EXPECT_EQ(kInteger, SQLITE_INTEGER);
  EXPECT_EQ(kFloat, SQLITE_FLOAT);
  EXPECT_EQ(kText, SQLITE_TEXT);
  EXPECT_EQ(kNull, SQLITE_NULL);
  EXPECT_EQ(kOpenReadOnly, SQLITE_OPEN_READONLY);
  EXPECT_EQ(kOpenReadWrite, SQLITE_OPEN_READWRITE);
  EXPECT_EQ(kOpenCreate, SQLITE_OPEN_CREATE);
#define OCTAVO_SAME(member, function) \
  EXPECT_TRUE((SameShape<decltype(Sqlite::member), decltype(&(function))>::value)) << #function
  OCTAVO_SAME(libversion, sqlite3_libversion);
  OCTAVO_SAME(open, sqlite3_open_v2);
  OCTAVO_SAME(close, sqlite3_close);
  OCTAVO_SAME(errmsg, sqlite3_errmsg);
  OCTAVO_SAME(busy_timeout, sqlite3_busy_timeout);
  OCTAVO_SAME(exec, sqlite3_exec);
  OCTAVO_SAME(prepare, sqlite3_prepare_v2);
  OCTAVO_SAME(finalize, sqlite3_finalize);
  OCTAVO_SAME(step, sqlite3_step);
  OCTAVO_SAME(bind_null, sqlite3_bind_null);
  OCTAVO_SAME(bind_int64, sqlite3_bind_int64);
  OCTAVO_SAME(bind_double, sqlite3_bind_double);
  OCTAVO_SAME(bind_text, sqlite3_bind_text);
  OCTAVO_SAME(column_count, sqlite3_column_count);
  OCTAVO_SAME(column_type, sqlite3_column_type);
  OCTAVO_SAME(column_int64, sqlite3_column_int64);
  OCTAVO_SAME(column_double, sqlite3_column_double);
  OCTAVO_SAME(column_text, sqlite3_column_text);
  OCTAVO_SAME(column_bytes, sqlite3_column_bytes);
#undef OCTAVO_SAME
}
#endif

}  // namespace
}  // namespace octavo::evolve
