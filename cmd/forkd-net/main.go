// Command forkd-net connects the sandboxes of a host to the network. The daemon starts it with a
// listening control socket as descriptor 3. The program takes no arguments and is not for use by
// hand.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/net"
)

func main() { os.Exit(net.Main()) }
