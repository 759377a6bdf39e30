// Command forkd-feed serves the files of a snapshot whose frames are still arriving from a
// registry. The daemon starts it with a control socket as descriptor 3, and a connection to the
// kernel's FUSE as descriptor 4. It takes no arguments and is not for use by hand.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/feed"
)

func main() { os.Exit(feed.Main()) }
