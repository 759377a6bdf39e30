// Command forkd is the CLI of the forkd sandbox runtime and, as `forkd daemon`, its daemon. Package
// cli has the code, one file per verb.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})) }
