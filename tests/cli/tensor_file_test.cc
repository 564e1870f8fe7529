// SPDX-License-Identifier: Apache-2.0
// Tensors in real files: selection by name, atomic writing, refused files.
#include "tensors/tensor_file.h"

#include <sys/stat.h>

#include "cli/files.h"
#include "tensors/byte_source.h"

namespace octavo::cli {
namespace {

HostTensor sample(DType dtype) {
  HostTensor tensor{dtype, {1, 2, 3, 4}, std::vector<std::byte>(24 * size_bytes(dtype))};
  for (std::size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = std::byte(i % 60);
  return tensor;
}

Status save(const std::string& spec, const HostTensor& tensor) {
  Result<TensorWriter> writer = TensorWriter::open("--out", spec, "out");
  if (!writer.ok()) return writer.status();
  if (Status status = writer->write(tensor); !status.ok()) return status;
  return writer->commit();
}

TEST(TensorFile, RoundTripsEveryType) {
  const Directory directory;
  for (const DType dtype : kAllDTypes) {
    for (const char* file : {"x.npy", "x.safetensors", "x.safetensors:layer.0"}) {
      if (dtype == DType::bf16 && std::string_view(file) == "x.npy") continue;  // below
      const std::string spec = directory / file;
      const HostTensor tensor = sample(dtype);
      ASSERT_TRUE(save(spec, tensor).ok());
      const bool float8 = dtype == DType::e4m3 || dtype == DType::e5m2;
      const auto back =
          load_tensor("--q", spec, float8 ? std::optional<DType>(dtype) : std::nullopt);
      ASSERT_TRUE(back.ok()) << back.status().message();
      EXPECT_EQ(back->dtype, dtype);
      EXPECT_EQ(back->shape, tensor.shape);
      EXPECT_EQ(back->data, tensor.data);
    }
  }
  EXPECT_EQ(directory.files(), 2u) << "a temporary file was left behind";
}

TEST(TensorFile, NpyWidensBf16) {
  const Directory directory;
  HostTensor tensor{DType::bf16, {2}, {}};
  for (const int byte : {0x80, 0x3f, 0x20, 0xc0}) tensor.data.push_back(std::byte(byte));
  ASSERT_TRUE(save(directory / "x.npy", tensor).ok());
  const auto back = load_tensor("--q", directory / "x.npy");
  ASSERT_TRUE(back.ok());
  ASSERT_EQ(back->dtype, DType::f32);
  float values[2];
  std::memcpy(values, back->data.data(), sizeof values);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], -2.5f);
}

TEST(TensorFile, FailureNamesFlagAndFile) {
  const Directory directory;
  const auto missing = load_tensor("--k", directory / "none.npy");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), ErrorCode::io_error);
  EXPECT_TRUE(missing.status().message().starts_with("--k ")) << missing.status().message();
  EXPECT_NE(missing.status().message().find("none.npy"), std::string::npos);

  for (const char* name : {"x.bin", "x", "x.npz", ".safetensor"}) {
    const auto other = load_tensor("--k", directory / name);
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.status().code(), ErrorCode::invalid_argument);
    EXPECT_NE(other.status().message().find("FILE.npy"), std::string::npos);
  }
}

TEST(TensorFile, RefusesIrregularFiles) {
  const Directory directory;
  std::filesystem::create_directory(directory / "d.npy");
  EXPECT_EQ(load_tensor("--q", directory / "d.npy").status().code(), ErrorCode::io_error);
  const std::string pipe = directory / "p.npy";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(load_tensor("--q", pipe).status().code(), ErrorCode::io_error) << "waits for a writer?";
}

TEST(TensorFile, TargetIsUntouchedUntilCommit) {
  const Directory directory;
  const std::string path = directory / "x.npy";
  write_file(path, "precious");
  {
    auto writer = TensorWriter::open("--out", path, "out");
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->write(sample(DType::f32)).ok());
    EXPECT_EQ(read_file(path), "precious");
  }
  EXPECT_EQ(read_file(path), "precious");
  EXPECT_EQ(directory.files(), 1u) << "a temporary file was left behind";
}

TEST(TensorFile, KeepsLinksAndPermissions) {
  const Directory directory;
  const std::string path = directory / "x.npy";
  write_file(path, "old");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  std::filesystem::create_symlink("x.npy", directory / "link.npy");
  ASSERT_TRUE(save(directory / "link.npy", sample(DType::f32)).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "link.npy"));
  EXPECT_TRUE(load_tensor("--q", path).ok());
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST(OutputFile, WritesDevicesDirectly) {
  auto file = OutputFile::open("/dev/null");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->write("gone").ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(OutputFile, ErrorGivesTheReason) {
  const Directory directory;
  for (const std::string& path : {directory / "none/x.npy", directory / ""}) {
    const auto file = OutputFile::open(path);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), ErrorCode::io_error);
    EXPECT_NE(file.status().message().find("cannot be written"), std::string::npos);
  }
}

TEST(HostTensor, RefusesRankAndSize) {
  HostTensor three{DType::f32, {2, 3, 4}, std::vector<std::byte>(96)};
  const auto view = bhsd_view("--q", three);
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.status().message(), "--q is of rank 3 (2, 3, 4); supported: rank 4 (B, H, S, D).");
  EXPECT_FALSE(make_tensor("--shape", DType::f32, {1 << 20, 1 << 20, 1 << 10, 64}).ok());
  EXPECT_FALSE(make_tensor("--shape", DType::f32, {1 << 30, 1 << 30, 1 << 30, 64}).ok());
}

TEST(ByteSource, NeverReadsBeyondTheEnd) {
  const Directory directory;
  write_file(directory / "x", "12345678");
  const auto file = FileSource::open(directory / "x");
  ASSERT_TRUE(file.ok());
  const std::string text = "12345678";
  const MemorySource memory(bytes_of(text));
  std::array<std::byte, 4> out{};
  const std::vector<const ByteSource*> sources = {&memory, &*file};
  for (const ByteSource* source : sources) {
    EXPECT_TRUE(source->read(4, out).ok());
    EXPECT_EQ(out[3], std::byte{'8'});
    EXPECT_FALSE(source->read(5, out).ok());
    EXPECT_FALSE(source->read(UINT64_MAX - 1, out).ok());
  }
}

TEST(ByteSource, NoticesAFileThatShrinks) {
  const Directory directory;
  write_file(directory / "x", "12345678");
  const auto file = FileSource::open(directory / "x");
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(directory / "x", 2);
  std::array<std::byte, 4> out{};
  EXPECT_EQ(file->read(0, out).code(), ErrorCode::io_error);
}

}  // namespace
}  // namespace octavo::cli
