// A drive through VFIO (type 1, IOMMU on): no kernel module of ours, and the drive can reach only what we map for it.
#pragma once

#include <memory>
#include <string>

#include "nvme/device.hpp"

namespace gids::nvme {

// The PCI function `address` ("0000:01:00.0"), which must be bound to vfio-pci. Throws StorageError with what is
// missing.
std::shared_ptr<Device> open_vfio(const std::string& address);

}  // namespace gids::nvme
