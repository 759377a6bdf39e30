// Command forkd-machined is PID 1 of the emulated host that `forkd machine` starts. Nobody runs it
// by hand; what it does is in package machined.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/emu/machined"
)

func main() { os.Exit(machined.Main(os.Args[1:])) }
