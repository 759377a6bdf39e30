package pid1

import (
	"errors"
	"fmt"
	"net"
	"runtime/debug"

	"github.com/mdlayher/vsock"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// helperHeap is the heap size that the garbage collector of a helper aims at, in bytes. The VM has more
// memory, which the page cache uses.
const helperHeap = 256 << 20

// Helper is the main function of the init program in a VM that does one task for the daemon. It
// prepares the devices, connects to a vsock port of the host, calls the function serve, and
// switches the VM off. It returns only if the VM cannot be switched off. The result is then the
// exit code of the process.
func Helper(port uint32, serve func(*kmsg.Log, net.Conn) error) int {
	debug.SetMemoryLimit(helperHeap)
	log, err := EarlyLog()
	if err == nil {
		err = help(log, port, serve)
	}
	PowerOff(log, err)
	return 1
}

func help(log *kmsg.Log, port uint32, serve func(*kmsg.Log, net.Conn) error) error {
	if err := Devices(log); err != nil {
		return err
	}
	conn, err := vsock.Dial(agentproto.HostCID, port, nil)
	if err != nil {
		return fmt.Errorf("dial vsock port %d of the host: %w", port, err)
	}
	defer conn.Close()
	if err := serve(log, conn); err != nil {
		return err
	}
	return errors.New("the host has left")
}
