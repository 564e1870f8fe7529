// SPDX-License-Identifier: Apache-2.0
// Preloaded into the command: pthread_create always fails.
#include <pthread.h>

#include <cerrno>

extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t*, const pthread_attr_t*,
                                                             void* (*)(void*), void*) noexcept {
  return EAGAIN;
}
