package apirig

import (
	"io"
	"os"
	"os/exec"
)

// AgentDirEnv is the variable that makes a test binary a guest's agent, if its TestMain calls Main.
// Its value is the directory of the agent's sockets.
const AgentDirEnv = "FORKD_TEST_AGENT_DIR"

// Main runs the tests m of a package or, in a process of SelfAgent, the main function of the agent. It
// does not return.
func Main(m interface{ Run() int }, agent func(args []string, stderr io.Writer) int) {
	if dir := os.Getenv(AgentDirEnv); dir != "" {
		os.Exit(agent([]string{"-listen-dir", dir}, os.Stderr))
	}
	os.Exit(m.Run())
}

// SelfAgent returns the command of an agent for Options.Agent: the test binary, whose TestMain calls
// Main.
func SelfAgent(dir string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), AgentDirEnv+"="+dir)
	return cmd
}
