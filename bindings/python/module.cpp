// securecoll._engine: the data plane for Python.
#include "module.hpp"

NB_MODULE(_engine, m) {
  nanobind::set_leak_warnings(false);  // communicators that a script never closed live until the process ends
  m.doc() = "securecoll's data plane; use it through the securecoll package";
  bind_secrets(m);
  bind_host(m);
  bind_device(m);
  bind_engine(m);
}
