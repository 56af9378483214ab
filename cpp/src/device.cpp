#include "dflash/device.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fcntl.h>
#include <cerrno>
#include <stdexcept>

#include "backend_function.h"
#include "dflash/log.h"
#include "ggml-rpc.h"

namespace dflash {
namespace {

template <typename Function>
Function * rpc_function(const char * name) {
    auto * found = backend_function<Function>(ggml_backend_reg_by_name("RPC"), name);
    if (!found) {
        throw std::invalid_argument("this build has no RPC; build with -DGGML_RPC=ON");
    }
    return found;
}

// Whether something accepts connections; ggml's client aborts the process where nothing does.
bool answers(const std::string & host, const std::string & port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo * found = nullptr;
    if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
        return false;
    }
    bool connected = false;
    for (const addrinfo * at = found; at && !connected; at = at->ai_next) {
        const int fd = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
        if (fd < 0) {
            continue;
        }
        ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
        connected = ::connect(fd, at->ai_addr, at->ai_addrlen) == 0;
        if (!connected && errno == EINPROGRESS) {
            pollfd waiting{fd, POLLOUT, 0};
            int error = -1;
            socklen_t size = sizeof(error);
            connected = ::poll(&waiting, 1, 3000) == 1 &&
                        ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
        }
        ::close(fd);
    }
    ::freeaddrinfo(found);
    return connected;
}

ggml_backend_dev_t rpc_device(const std::string & endpoint) {
    const std::size_t colon = endpoint.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == endpoint.size()) {
        throw std::invalid_argument("drafter_device is 'rpc:" + endpoint + "'; use rpc:HOST:PORT");
    }
    const auto add_server = rpc_function<decltype(ggml_backend_rpc_add_server)>("ggml_backend_rpc_add_server");
    if (!answers(endpoint.substr(0, colon), endpoint.substr(colon + 1))) {
        throw std::invalid_argument("drafter_device is 'rpc:" + endpoint + "', but no server answers there");
    }
    ggml_backend_reg_t reg = add_server(endpoint.c_str());
    if (!reg || ggml_backend_reg_dev_count(reg) == 0) {
        throw std::invalid_argument("the RPC server at " + endpoint + " offers no device");
    }
    return ggml_backend_reg_dev_get(reg, 0);
}

}  // namespace

ggml_backend_device * find_device(const std::string & name) {
    init_backend();
    if (name.rfind("rpc:", 0) == 0) {
        return rpc_device(name.substr(4));
    }
    if (ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str())) {
        return device;
    }
    std::string names;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        names += std::string(i ? ", " : "") + ggml_backend_dev_name(ggml_backend_dev_get(i));
    }
    throw std::invalid_argument("drafter_device is '" + name + "'; this build has " + names + ", and rpc:HOST:PORT");
}

std::vector<DeviceInfo> devices() {
    init_backend();
    std::vector<DeviceInfo> found;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        DeviceInfo info{ggml_backend_dev_name(device), ggml_backend_dev_description(device),
                        ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_GPU};
        std::size_t free = 0;
        std::size_t total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        info.memory_free = free;
        info.memory_total = total;
        found.push_back(std::move(info));
    }
    return found;
}

void serve_rpc(const std::string & endpoint, int n_threads) {
    init_backend();
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    rpc_function<decltype(ggml_backend_rpc_start_server)>("ggml_backend_rpc_start_server")(
        endpoint.c_str(), nullptr, static_cast<std::size_t>(n_threads), 1, &cpu);
}

}  // namespace dflash
