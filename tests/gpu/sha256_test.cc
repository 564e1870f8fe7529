// SPDX-License-Identifier: Apache-2.0
// SHA-256 against published vectors, and in several updates.
#include "gpu/jit/sha256.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

// FIPS 180-4 examples and NIST's long message.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmno"
                 "pqklmnopqrlmnopqrsmnopqrstnopqrstu"),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, SeveralUpdatesGiveTheSameDigest) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 37);
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::string_view all = std::string_view(text).substr(0, size);
    Sha256 hash;
    for (std::size_t at = 0, step = 1; at < size; at += step, step = step * 3 % 71 + 1) {
      hash.update(all.substr(at, step));
    }
    ASSERT_EQ(hash.finish_hex(), sha256_hex(all)) << size;
  }
}

TEST(Sha256, FieldsAreDelimited) {
  EXPECT_NE(Sha256().field("ab").field("c").finish_hex(),
            Sha256().field("a").field("bc").finish_hex());
  EXPECT_NE(Sha256().field("").field("a").finish_hex(), Sha256().field("a").finish_hex());
}

}  // namespace
}  // namespace octavo
