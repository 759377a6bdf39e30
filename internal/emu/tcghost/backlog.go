package tcghost

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// deepen enlarges the accept queues of the sockets on which the process with the given pid listens
// at the given TCP addresses. QEMU listens with a queue of one connection. If ten clients connect
// at the same time, the kernel resets some connections or makes them wait a second. The queue
// belongs to the socket, so calling listen(2) on a duplicate of QEMU's descriptor changes it.
func deepen(pid int, addrs ...string) error {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(process)
	left := len(addrs)
	for _, name := range names {
		number, err := strconv.Atoi(name.Name())
		if err != nil {
			return err
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if errors.Is(err, unix.EBADF) {
			continue // the descriptor has been closed in the meantime
		}
		if err != nil {
			return fmt.Errorf("take a descriptor of process %d: %w", pid, err)
		}
		if listensAt(fd, addrs) {
			left--
			err = unix.Listen(fd, unix.SOMAXCONN) // the kernel limits this to net.core.somaxconn
		}
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	if left != 0 {
		return fmt.Errorf("process %d does not listen at %d of %q", pid, left, addrs)
	}
	return nil
}

// listensAt reports whether fd is a socket that listens at one of the IPv4 addresses.
func listensAt(fd int, addrs []string) bool {
	if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on == 0 {
		return false
	}
	name, err := unix.Getsockname(fd)
	inet, ok := name.(*unix.SockaddrInet4)
	if err != nil || !ok {
		return false
	}
	at := net.TCPAddr{IP: inet.Addr[:], Port: inet.Port}
	return slices.Contains(addrs, at.String())
}
