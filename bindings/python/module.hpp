// The parts of securecoll._engine, one source file each.
#pragma once
#include <nanobind/nanobind.h>

void bind_secrets(nanobind::module_& m);
void bind_host(nanobind::module_& m);
void bind_device(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
