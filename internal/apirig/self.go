package apirig

import (
	"io"
	"os"
	"os/exec"
)

// AgentDirEnv is an environment variable that holds the directory of an agent's sockets. If the
// variable is set, a test binary runs as that agent, provided that its TestMain calls Main.
const AgentDirEnv = "FORKD_TEST_AGENT_DIR"

// Main runs the tests m of a package. In a process started by SelfAgent, it runs the agent instead.
// Main does not return.
func Main(m interface{ Run() int }, agent func(args []string, stderr io.Writer) int) {
	if dir := os.Getenv(AgentDirEnv); dir != "" {
		os.Exit(agent([]string{"-listen-dir", dir}, os.Stderr))
	}
	os.Exit(m.Run())
}

// SelfAgent returns a command for Options.Agent. It runs the test binary, whose TestMain must call
// Main.
func SelfAgent(dir string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), AgentDirEnv+"="+dir)
	return cmd
}
