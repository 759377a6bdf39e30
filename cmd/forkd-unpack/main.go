// Command forkd-unpack is the init of a VM that unpacks a container image onto a blank disk. On a
// host it fills a directory with a Debian base. Package unpack has the code.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/guest/unpack"
)

func main() { os.Exit(unpack.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
