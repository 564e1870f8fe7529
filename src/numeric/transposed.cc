#include "numeric/transposed.h"

namespace octavo {

std::int64_t transposed_columns(std::int64_t keys, std::int64_t sequences) {
  return sequences == 0 ? v_column_bytes(keys) : packed_v_column_bytes(keys, sequences);
}

std::int64_t transposed_begin(std::int64_t begin, std::int64_t number) {
  return (begin / kKeyGroup + number) * kKeyGroup;
}

}  // namespace octavo
