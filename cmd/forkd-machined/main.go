// Command forkd-machined is PID 1 of the emulated host that `forkd machine` starts. It is not for
// use by hand. Package machined has the code.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/emu/machined"
)

func main() { os.Exit(machined.Main(os.Args[1:])) }
