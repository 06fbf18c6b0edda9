// libtorch exports a gloo of its own. Which one a program calls is decided by the order of its libraries, so
// this test is linked with libtorch and asks the dynamic linker.
#include <dlfcn.h>

#include <string>

#include "support/catch.hpp"

TEST_CASE("gloo's functions come from libgloo although libtorch exports them too") {
  void* torch = ::dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(torch != nullptr);  // the test means nothing without it
  int exported_by_both = 0;
  for (const char* symbol : {
           "_ZN4gloo7ContextC1Eiii",                     // Context::Context
           "_ZN4gloo7Context16closeConnectionsEv",       // closeConnections
           "_ZN4gloo7Context19createUnboundBufferEPvm",  // createUnboundBuffer
           "_ZN4gloo10rendezvous7Context15connectFullMeshERNS0_5StoreERSt10shared_ptrINS_9transport6DeviceEE",
           "_ZN4gloo9transport3tcp12CreateDeviceERKNS1_4attrE",
           "_ZTVN4gloo9transport3tcp13UnboundBufferE",
       }) {
    CAPTURE(symbol);
    void* address = ::dlsym(RTLD_DEFAULT, symbol);
    REQUIRE(address != nullptr);
    Dl_info info{};
    REQUIRE(::dladdr(address, &info) != 0);
    CHECK(std::string(info.dli_fname).find("libgloo.so") != std::string::npos);
    exported_by_both += ::dlsym(torch, symbol) != nullptr ? 1 : 0;
  }
  CHECK(exported_by_both > 0);
  ::dlclose(torch);
}
