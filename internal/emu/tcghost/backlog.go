package tcghost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// deepen enlarges the accept queues of the sockets on which the process with the given pid listens
// at the given TCP addresses. QEMU listens with a queue of one connection. If ten clients connect
// at the same time, the kernel resets some connections or makes them wait one second. The queue
// belongs to the socket, so calling listen(2) on a duplicate of QEMU's descriptor changes the
// queue.
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

// awaitListen waits until the process with the given pid listens at all of the IPv4 addresses, and
// returns true. If ctx ends first, it returns false. Another user of this host can read the ports in
// QEMU's command line and listen there before QEMU does. A ping to that user would give away the
// token.
func awaitListen(ctx context.Context, pid int, addrs []string) bool {
	for tick := time.NewTicker(listenEvery); ; {
		if listens(pid, addrs) {
			tick.Stop()
			return true
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return false
		case <-tick.C:
		}
	}
}

// listenEvery is the interval between two checks of awaitListen.
const listenEvery = 50 * time.Millisecond

// listens reports whether the process with the given pid listens at all of the IPv4 addresses. Unlike
// deepen, it needs no right to take the descriptors of the process.
func listens(pid int, addrs []string) bool {
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	sockets := make(map[string]bool)
	for _, name := range names {
		if to, err := os.Readlink(filepath.Join(dir, name.Name())); err == nil {
			sockets[to] = true
		}
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		// Fields of proc(5): number, local address, remote address, state, …, inode.
		f := strings.Fields(line)
		const listening = "0A"
		if len(f) < 10 || f[3] != listening || !sockets["socket:["+f[9]+"]"] {
			continue
		}
		if addr, err := procAddr(f[1]); err == nil {
			found = append(found, addr)
		}
	}
	return !slices.ContainsFunc(addrs, func(addr string) bool { return !slices.Contains(found, addr) })
}

// procAddr converts an IPv4 address of /proc/net/tcp, such as 0100007F:1F90: the address is in the
// byte order of x86, and the address and the port are in hex.
func procAddr(text string) (string, error) {
	ip, port, _ := strings.Cut(text, ":")
	address, err := strconv.ParseUint(ip, 16, 32)
	if err != nil {
		return "", err
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return "", err
	}
	at := net.TCPAddr{IP: binary.LittleEndian.AppendUint32(nil, uint32(address)), Port: int(number)}
	return at.String(), nil
}
