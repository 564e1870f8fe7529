// SPDX-License-Identifier: Apache-2.0
// Reads a cubin: a 64-bit ELF file whose .text.<kernel> sections hold 16-byte instructions and
// whose .nv.info section holds attributes (format, attribute, size, payload). Neither is
// documented; the values below were found by compiling kernels with known properties, and tests
// compare them with the output of ptxas.
#include "gpu/jit/cubin_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

namespace octavo {
namespace {

using Bytes = std::span<const std::byte>;

Status not_a_cubin(std::string_view what) {
  return {ErrorCode::io_error, fmt::format("The cubin cannot be read: {}.", what)};
}

// The bytes [offset, offset + size), if all of them exist.
std::optional<Bytes> part(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
  return bytes.subspan(offset, size);
}

// Reads a little-endian value (all CUDA hosts are); 0 beyond the end.
template <class T>
T number(Bytes bytes, std::uint64_t offset) {
  T value = 0;
  if (const auto at = part(bytes, offset, sizeof(T))) std::memcpy(&value, at->data(), sizeof(T));
  return value;
}

std::string_view text_at(Bytes table, std::uint64_t offset) {
  if (offset >= table.size()) return {};
  const char* const start = reinterpret_cast<const char*>(table.data()) + offset;
  return {start, strnlen(start, table.size() - offset)};
}

constexpr std::uint32_t kSymbolTable = 2;  // SHT_SYMTAB
constexpr std::uint32_t kNoBits = 8;       // SHT_NOBITS

struct Section {
  std::string_view name;
  std::uint32_t type = 0;
  std::uint32_t link = 0;
  std::uint64_t size = 0;
  Bytes bytes;  // empty for kNoBits
};

Result<std::vector<Section>> read_sections(Bytes file) {
  constexpr std::uint64_t kHeader = 64;
  if (file.size() < kHeader || std::memcmp(file.data(),
                                           "\x7f"
                                           "ELF\x02\x01",
                                           6) != 0) {
    return not_a_cubin("it is not a 64-bit little-endian ELF file");
  }
  const auto offset = number<std::uint64_t>(file, 40);
  const auto entry_bytes = number<std::uint16_t>(file, 58);
  const auto count = number<std::uint16_t>(file, 60);
  const auto names_index = number<std::uint16_t>(file, 62);
  const auto table = part(file, offset, std::uint64_t{entry_bytes} * count);
  if (!table || entry_bytes != kHeader || names_index >= count) {
    return not_a_cubin("its section table is not in the file");
  }
  std::vector<Section> sections(count);
  std::vector<std::uint32_t> names(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Bytes header = table->subspan(i * kHeader, kHeader);
    Section& section = sections[i];
    names[i] = number<std::uint32_t>(header, 0);
    section.type = number<std::uint32_t>(header, 4);
    section.link = number<std::uint32_t>(header, 40);
    section.size = number<std::uint64_t>(header, 32);
    if (section.type == kNoBits) continue;
    const auto bytes = part(file, number<std::uint64_t>(header, 24), section.size);
    if (!bytes) return not_a_cubin(fmt::format("section {} is not in the file", i));
    section.bytes = *bytes;
  }
  for (std::size_t i = 0; i < count; ++i) {
    sections[i].name = text_at(sections[names_index].bytes, names[i]);
  }
  return sections;
}

// Names of the symbols, by index.
std::vector<std::string_view> read_symbols(const std::vector<Section>& sections) {
  constexpr std::size_t kSymbolBytes = 24;
  std::vector<std::string_view> symbols;
  for (const Section& section : sections) {
    if (section.type != kSymbolTable || section.link >= sections.size()) continue;
    for (std::size_t at = 0; at + kSymbolBytes <= section.bytes.size(); at += kSymbolBytes) {
      symbols.push_back(
          text_at(sections[section.link].bytes, number<std::uint32_t>(section.bytes, at)));
    }
    break;
  }
  return symbols;
}

// Calls visit(attribute, payload) for each attribute that has one.
template <class Visitor>
void visit_attributes(Bytes info, Visitor&& visit) {
  constexpr std::uint8_t kSized = 4;  // others keep their value in the header
  std::size_t at = 0;
  while (at + 4 <= info.size()) {
    const auto format = number<std::uint8_t>(info, at);
    const auto attribute = number<std::uint8_t>(info, at + 1);
    const std::size_t bytes = format == kSized ? number<std::uint16_t>(info, at + 2) : 0;
    const auto payload = part(info, at + 4, bytes);
    if (!payload) return;
    if (format == kSized) visit(attribute, *payload);
    at += 4 + bytes;
  }
}

constexpr std::uint8_t kFrameSize = 0x11, kMinStackSize = 0x12, kRegisterCount = 0x2f;

void read_attributes(Bytes info, const std::vector<std::string_view>& symbols,
                     std::vector<CubinKernel>& kernels) {
  visit_attributes(info, [&](std::uint8_t attribute, Bytes payload) {
    const auto symbol = number<std::uint32_t>(payload, 0);
    if (payload.size() < 8 || symbol >= symbols.size()) return;
    const int value =
        static_cast<int>(std::min<std::uint32_t>(number<std::uint32_t>(payload, 4), 1u << 30));
    for (CubinKernel& kernel : kernels) {
      if (kernel.symbol != symbols[symbol]) continue;
      if (attribute == kRegisterCount) kernel.registers = value;
      if (attribute == kFrameSize || attribute == kMinStackSize) {
        kernel.stack_bytes = std::max(kernel.stack_bytes, value);
      }
    }
  });
}

constexpr std::size_t kInstructionBytes = 16;

// The low 9 bits of an instruction are the opcode, the next 3 the kind of its operands.
void count(Bytes instruction, InstructionCounts& counts) {
  const auto low = number<std::uint64_t>(instruction, 0);
  const auto high = number<std::uint64_t>(instruction, 8);
  ++counts.total;
  switch (low & 0x1ff) {
    case 0x03c:
      ++counts.hmma;
      break;
    case 0x037:
      ++counts.imma;
      break;
    case 0x07a:
      ++counts.qmma;
      break;
    case 0x1f0:
      ++counts.wgmma_f16;
      break;
    case 0x1f3:
      ++counts.wgmma_fp8;
      break;
    case 0x1f1:
      ++counts.wgmma_int8;
      break;
    case 0x03b:
      ++counts.ldmatrix;
      break;
    case 0x108: {  // MUFU; bits 74 to 77 select the function
      constexpr std::uint64_t kEx2 = 2;
      if ((high >> 10 & 0xf) == kEx2) ++counts.exp2;
      break;
    }
    case 0x188:
      ++counts.shared_stores;
      break;
    case 0x184:
      ++counts.shared_loads;
      break;
    case 0x187:
      ++counts.local_stores;
      break;
    case 0x183:
      ++counts.local_loads;
      break;
    case 0x1ae:
      ++counts.async_copies;
      break;
    default:
      break;
  }
}

CubinKernel read_kernel(std::string_view symbol, Bytes code) {
  CubinKernel kernel;
  kernel.symbol = symbol;
  kernel.code_bytes = code.size();
  for (std::size_t at = 0; at + kInstructionBytes <= code.size(); at += kInstructionBytes) {
    count(code.subspan(at, kInstructionBytes), kernel.instructions);
  }
  return kernel;
}

// CUDA 13 moved the architecture to the second byte of the flags and raised the ABI version.
int arch_of(Bytes file) {
  const auto flags = number<std::uint32_t>(file, 48);
  const auto abi = number<std::uint8_t>(file, 8);
  return static_cast<int>((abi >= 8 ? flags >> 8 : flags) & 0xff);
}

}  // namespace

const CubinKernel* CubinInfo::find(std::string_view symbol) const {
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [&](const CubinKernel& k) { return k.symbol == symbol; });
  return found == kernels.end() ? nullptr : &*found;
}

Result<CubinInfo> read_cubin(std::span<const std::byte> cubin) {
  const Result<std::vector<Section>> sections = read_sections(cubin);
  if (!sections.ok()) return sections.status();
  constexpr std::string_view kText = ".text.", kShared = ".nv.shared.";
  CubinInfo info;
  info.arch = arch_of(cubin);
  for (const Section& section : *sections) {
    if (section.name.starts_with(kText)) {
      CubinKernel kernel = read_kernel(section.name.substr(kText.size()), section.bytes);
      if (!section.bytes.empty())
        kernel.code_offset = static_cast<std::size_t>(section.bytes.data() - cubin.data());
      info.kernels.push_back(std::move(kernel));
    }
    // -lineinfo adds only .debug_line.
    if (section.name == ".debug_info") info.debug = true;
  }
  const std::vector<std::string_view> symbols = read_symbols(*sections);
  for (const Section& section : *sections) {
    if (section.name == ".nv.info") read_attributes(section.bytes, symbols, info.kernels);
    if (!section.name.starts_with(kShared)) continue;
    for (CubinKernel& kernel : info.kernels) {
      if (section.name.substr(kShared.size()) == kernel.symbol) {
        // From sm_90 on the section starts with the kilobyte that CUDA reserves.
        const std::uint64_t reserved = info.arch >= 90 ? 1024 : 0;
        const std::uint64_t bytes = section.size - std::min(section.size, reserved);
        kernel.static_smem_bytes = static_cast<int>(std::min<std::uint64_t>(bytes, 1 << 30));
      }
    }
  }
  return info;
}

Status check_cubin(const CubinInfo& info, std::string_view symbol, const CubinPolicy& policy) {
  const CubinKernel* const kernel = info.find(symbol);
  if (kernel == nullptr) return not_a_cubin(fmt::format("it has no kernel {}", symbol));
  if (info.debug && !policy.allow_debug) {
    return {ErrorCode::unsupported,
            fmt::format("{} was compiled for the debugger (-G) and is refused.", symbol)};
  }
  if (kernel->spills() && !policy.allow_spills) {
    return {ErrorCode::unsupported,
            fmt::format("{} spills: {} bytes of local memory a thread, {} loads and {} stores; it "
                        "is refused.",
                        symbol, kernel->stack_bytes, kernel->instructions.local_loads,
                        kernel->instructions.local_stores)};
  }
  return {};
}

}  // namespace octavo
