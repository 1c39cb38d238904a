#include "engine/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <cerrno>
#include <cstring>

#include "engine/error.hpp"
#include "engine/wire.hpp"

namespace securecoll {
namespace {

sockaddr_in& v4(Address& a) { return reinterpret_cast<sockaddr_in&>(a.storage); }
sockaddr_in6& v6(Address& a) { return reinterpret_cast<sockaddr_in6&>(a.storage); }
const sockaddr_in& v4(const Address& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& v6(const Address& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

std::string host_of(const Address& a) {
  char text[INET6_ADDRSTRLEN] = "";
  const void* raw = a.family() == AF_INET6 ? static_cast<const void*>(&v6(a).sin6_addr) : &v4(a).sin_addr;
  inet_ntop(a.family(), raw, text, sizeof text);
  return text;
}

}  // namespace

uint16_t Address::port() const { return ntohs(family() == AF_INET6 ? v6(*this).sin6_port : v4(*this).sin_port); }

std::string Address::text() const {
  const std::string host = family() == AF_INET6 ? '[' + host_of(*this) + ']' : host_of(*this);
  return host + ':' + std::to_string(port());
}

Address Address::parse(const std::string& text) {
  Address a;
  if (inet_pton(AF_INET, text.c_str(), &v4(a).sin_addr) == 1)
    a.storage.ss_family = AF_INET;
  else if (inet_pton(AF_INET6, text.c_str(), &v6(a).sin6_addr) == 1)
    a.storage.ss_family = AF_INET6;
  else
    throw EngineError(ErrorKind::config, "'" + text + "' is no IPv4 or IPv6 address");
  return a;
}

void encode_addresses(const std::vector<Address>& addresses, uint8_t out[kAddressesBytes]) {
  std::memset(out, 0, kAddressesBytes);
  for (const Address& a : addresses) {
    const bool six = a.family() == AF_INET6;
    store_be16(out + (six ? 2 : 0), a.port());
    if (six)
      std::memcpy(out + 16, &v6(a).sin6_addr, 16);
    else
      std::memcpy(out + 4, &v4(a).sin_addr, 4);
  }
}

std::vector<Address> decode_addresses(const uint8_t in[kAddressesBytes]) {
  std::vector<Address> addresses;
  for (const bool six : {false, true}) {
    const uint16_t port = load_be16(in + (six ? 2 : 0));
    if (!port) continue;
    Address a;
    if (six) {
      v6(a).sin6_family = AF_INET6;
      v6(a).sin6_port = htons(port);
      std::memcpy(&v6(a).sin6_addr, in + 16, 16);
    } else {
      v4(a).sin_family = AF_INET;
      v4(a).sin_port = htons(port);
      std::memcpy(&v4(a).sin_addr, in + 4, 4);
    }
    addresses.push_back(a);
  }
  return addresses;
}

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    throw EngineError(ErrorKind::config,
                      std::string("the network interfaces cannot be listed: ") + std::strerror(errno));
  std::vector<Interface> found;
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
    Address a;
    if (i->ifa_addr->sa_family == AF_INET)
      std::memcpy(&a.storage, i->ifa_addr, sizeof(sockaddr_in));
    else if (i->ifa_addr->sa_family == AF_INET6)
      std::memcpy(&a.storage, i->ifa_addr, sizeof(sockaddr_in6));
    else
      continue;
    if (a.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(a).sin6_addr)) continue;
    found.push_back({i->ifa_name, host_of(a), (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(list);
  return found;
}

}  // namespace securecoll
