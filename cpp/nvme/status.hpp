// Completion status in words, and whether it is worth another try.
#pragma once

#include <cstdint>
#include <string>

namespace gids::nvme {

// "media error: unrecovered read error (type 2, code 0x81, do-not-retry 0)"
std::string describe_status(uint32_t status);

// The errno that says the same to callers who know only errno.
int status_errno(uint32_t status);

// False for do-not-retry and for answers that the same command can only get again.
bool may_retry(uint32_t status);

}  // namespace gids::nvme
