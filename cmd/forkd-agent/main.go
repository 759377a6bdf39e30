// Command forkd-agent is the init of a forkd guest; see package agent.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/agent"
)

func main() { os.Exit(agent.Main(os.Args[1:], os.Stderr)) }
