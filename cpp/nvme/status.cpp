// The status codes that reads, admin commands and fabrics-free controllers return (NVMe base specification 1.4, 4.6.1).
#include "nvme/status.hpp"

#include <cerrno>
#include <cstdio>

#include "nvme_spec.cuh"

namespace gids::nvme {
namespace {

const char* generic(uint32_t code) {
    switch (code) {
        case 0x00:
            return "success";
        case 0x01:
            return "invalid opcode";
        case 0x02:
            return "invalid field in command";
        case 0x03:
            return "command id conflict";
        case 0x04:
            return "data transfer error";
        case 0x05:
            return "aborted because of power loss";
        case 0x06:
            return "internal error";
        case 0x07:
            return "aborted by request";
        case 0x08:
            return "aborted because its submission queue was deleted";
        case 0x0b:
            return "invalid namespace or format";
        case 0x0c:
            return "command sequence error";
        case 0x13:
            return "invalid PRP offset";
        case 0x1c:
            return "sanitize in progress";
        case 0x80:
            return "LBA out of range";
        case 0x81:
            return "capacity exceeded";
        case 0x82:
            return "namespace not ready";
        default:
            return "generic error";
    }
}

const char* command_specific(uint32_t code) {
    switch (code) {
        case 0x00:
            return "completion queue invalid";
        case 0x01:
            return "invalid queue identifier";
        case 0x02:
            return "invalid queue size";
        case 0x03:
            return "abort command limit exceeded";
        case 0x08:
            return "invalid interrupt vector";
        case 0x0c:
            return "invalid queue deletion";
        case 0x81:
            return "invalid protection information";
        default:
            return "command specific error";
    }
}

const char* media(uint32_t code) {
    switch (code) {
        case 0x80:
            return "write fault";
        case 0x81:
            return "unrecovered read error";
        case 0x82:
            return "guard check error";
        case 0x83:
            return "application tag check error";
        case 0x84:
            return "reference tag check error";
        case 0x86:
            return "access denied";
        case 0x87:
            return "deallocated or unwritten block";
        default:
            return "media error";
    }
}

}  // namespace

std::string describe_status(uint32_t status) {
    const uint32_t type = status_type(status), code = status_code(status);
    const char* text = type == 0   ? generic(code)
                       : type == 1 ? command_specific(code)
                       : type == 2 ? media(code)
                       : type == 3 ? "path error"
                       : type == 7 ? "vendor specific error"
                                   : "reserved status type";
    char line[128];
    std::snprintf(line, sizeof line, "%s (type %u, code 0x%02x, do-not-retry %u)", text, type, code,
                  status_do_not_retry(status) ? 1u : 0u);
    return line;
}

int status_errno(uint32_t status) {
    const uint32_t type = status_type(status), code = status_code(status);
    if (status == 0) return 0;
    if (type == 0 && (code == 0x02 || code == 0x0b || code == 0x13)) return EINVAL;
    if (type == 0 && (code == 0x07 || code == 0x08)) return ECANCELED;
    if (type == 0 && code == 0x80) return ERANGE;
    if (type == 2 && code == 0x86) return EACCES;
    return EIO;
}

bool may_retry(uint32_t status) {
    if (status == 0 || status_do_not_retry(status)) return false;
    const int error = status_errno(status);
    return error != EINVAL && error != ERANGE && error != EACCES;
}

}  // namespace gids::nvme
