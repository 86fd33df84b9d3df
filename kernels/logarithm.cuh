// -log(u) of a random number, from additions, multiplications and one division only: the maths libraries of CPU and
// GPU differ in the last bit, and one bit is enough to choose another edge.
#pragma once

#include "exec.cuh"

namespace gids {

GIDS_DEVICE int leading_zeros(uint64_t x) {
#if defined(__CUDA_ARCH__)
    return __clzll(static_cast<long long>(x));
#else
    return __builtin_clzll(x);
#endif
}

// An exponentially distributed number from 64 random bits, read as u = (bits | 1) / 2^64. Relative error below 2^-50.
GIDS_DEVICE double exponential(uint64_t bits) {
    bits |= 1;
    const int zeros = leading_zeros(bits);
    // u = m * 2^-(zeros + 1) with m in [1, 2): its 53 leading bits convert without rounding.
    double m = static_cast<double>((bits << zeros) >> 11) * 0x1p-52;
    int exponent = -(zeros + 1);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        exponent += 1;
    }
    // log m = 2 atanh(s); |s| < 0.172, so the terms left out are below 2^-55 of the sum.
    const double s = (m - 1.0) / (m + 1.0);
    const double z = s * s;
    double sum = 1.0 / 21.0;
    for (int odd = 19; odd >= 1; odd -= 2) sum = sum * z + 1.0 / static_cast<double>(odd);
    const double log_u = static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * s * sum;
    return log_u < 0.0 ? -log_u : 0.0;
}

}  // namespace gids
