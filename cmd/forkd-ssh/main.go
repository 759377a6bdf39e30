// Command forkd-ssh speaks SSH with one client of the daemon. The daemon starts forkd-ssh with a
// control socket as descriptor 3, and the client's connection as descriptor 4. forkd-ssh takes no
// arguments and is not for use by hand.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/sshmux"
)

func main() { os.Exit(sshmux.Main()) }
