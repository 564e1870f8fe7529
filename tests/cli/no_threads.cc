// Preloaded into the command: a system that starts no thread.
#include <pthread.h>

#include <cerrno>

extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t*, const pthread_attr_t*,
                                                             void* (*)(void*), void*) noexcept {
  return EAGAIN;
}
