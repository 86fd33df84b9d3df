// What every binding file needs: nanobind, array argument types, and the bind_* functions that bind.cpp calls.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace gids {

template <class T>
using Vector = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using ConstVector = Vector<const T>;

void bind_dataset(nanobind::module_&);
void bind_tiers(nanobind::module_&);
void bind_partition(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_storage(nanobind::module_& m);
void bind_nvme(nanobind::module_& m);
void bind_cufile(nanobind::module_& m);
void bind_kg(nanobind::module_& m);
void bind_pack(nanobind::module_& m);
void bind_infer(nanobind::module_& m);

}  // namespace gids
