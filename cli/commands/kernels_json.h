// SPDX-License-Identifier: Apache-2.0
// A kernel as JSON, for the commands that list and explain them.
#pragma once

#include "json_text.h"
#include "octavo/kernels.hpp"

namespace octavo::cli {

inline Json kernel_json(const KernelInfo& info) {
  Json json = {{"kernel", info.kernel},
               {"config", info.config},
               {"arch", info.arch},
               {"kind", info.ptx ? "ptx" : "cubin"},
               {"available", info.status.ok()},
               {"reason", info.status.message()},
               {"threads", info.threads},
               {"dynamic_smem_bytes", info.dynamic_smem_bytes}};
  if (info.image_bytes > 0) {
    json["image_bytes"] = info.image_bytes;
    json["compile_ms"] = info.compile_ms;
    json["compiler"] = info.compiler;
    json["options"] = info.options;
    json["symbol"] = info.symbol;
    json["sha256"] = info.sha256;
  }
  if (info.code) {
    json["registers"] = info.code->registers;
    json["static_smem_bytes"] = info.code->static_smem_bytes;
    json["spill_bytes"] = info.code->local_bytes;
    json["spill_instructions"] = info.code->local_instructions;
    json["instructions"] = {{"total", info.code->instructions},
                            {"mma_f16", info.code->mma_f16},
                            {"mma_fp8", info.code->mma_fp8},
                            {"mma_int8", info.code->mma_int8},
                            {"ldmatrix", info.code->ldmatrix},
                            {"exp2", info.code->exp2},
                            {"shared_stores", info.code->shared_stores}};
    json["debug"] = info.code->debug;
  }
  return json;
}

}  // namespace octavo::cli
