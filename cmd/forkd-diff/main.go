// Command forkd-diff is the init of a VM that compares the files of two disks. Package difftree has
// the code.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/guest/difftree"
)

func main() { os.Exit(difftree.Main()) }
