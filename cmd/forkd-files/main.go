// Command forkd-files is the init of a VM that serves one request for the files of a volume. Package
// volfiles has the code.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/guest/volfiles"
)

func main() { os.Exit(volfiles.Main()) }
