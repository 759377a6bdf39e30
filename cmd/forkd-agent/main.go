// Command forkd-agent is the init of a forkd guest. Nobody runs it by hand on a host but for tests
// (-listen-dir); what it does is in package agent.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/guest/agent"
)

func main() { os.Exit(agent.Main(os.Args[1:], os.Stderr)) }
