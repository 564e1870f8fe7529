// SPDX-License-Identifier: Apache-2.0
// Ends a command early, with an exit code and the message that main prints.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "octavo/octavo.hpp"

namespace octavo::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed =
    1;  // a check failed, the device failed, an output was not written
inline constexpr int kExitUsage = 2;  // bad usage or bad input

class Exit final : public std::runtime_error {
 public:
  Exit(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

inline int exit_code(ErrorCode code) {
  return code == ErrorCode::out_of_memory || code == ErrorCode::device_error ? kExitFailed
                                                                             : kExitUsage;
}

inline void require(const Status& status) {
  if (!status.ok()) throw Exit(exit_code(status.code()), status.message());
}

template <class T>
T require(Result<T> result) {
  require(result.status());
  return std::move(result).value();
}

// Ends the command if an output could not be written. That is a failure of the run (exit code 1),
// but an invalid name is a usage error.
inline void require_written(const Status& status) {
  if (!status.ok()) {
    throw Exit(status.code() == ErrorCode::invalid_argument ? kExitUsage : kExitFailed,
               status.message());
  }
}

template <class T>
T require_written(Result<T> result) {
  require_written(result.status());
  return std::move(result).value();
}

}  // namespace octavo::cli
