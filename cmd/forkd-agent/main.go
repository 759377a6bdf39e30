// Command forkd-agent is the init of a forkd guest. It runs on a host only in tests (-listen-dir).
// Package agent has the code.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/guest/agent"
)

func main() { os.Exit(agent.Main(os.Args[1:], os.Stderr)) }
