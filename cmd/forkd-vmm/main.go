// Command forkd-vmm runs one virtual machine. The daemon starts it with a listening control socket
// as descriptor 3. The program takes no arguments and is not for use by hand.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/vmm"
)

func main() { os.Exit(vmm.Main()) }
