// Where a rank listens: at most one IPv4 and one IPv6 address, of one interface.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace securecoll {

struct Address {
  sockaddr_storage storage{};

  int family() const { return storage.ss_family; }
  socklen_t bytes() const { return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  uint16_t port() const;
  std::string text() const;  // "192.0.2.1:4711" or "[2001:db8::1]:4711"

  // From its usual notation. Throws EngineError: config.
  static Address parse(const std::string& text);
};

// What a rank announces of where it listens: u16 port | u16 port | IPv4 address, 4 bytes | 8 zero | IPv6 address, 16
// bytes. The first port is IPv4's; 0: none.
inline constexpr size_t kAddressesBytes = 32;
void encode_addresses(const std::vector<Address>& addresses, uint8_t out[kAddressesBytes]);
std::vector<Address> decode_addresses(const uint8_t in[kAddressesBytes]);

struct Interface {
  std::string name, address;
  bool loopback;
};
// The addresses of all interfaces that are up, but for those that mean nothing on another host (IPv6 link-local).
std::vector<Interface> interfaces();

}  // namespace securecoll
