package hook

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// Events show the failure of a hook to clients that may not see its arguments. The program is an argument.
func TestFailuresDoNotNameTheProgram(t *testing.T) {
	for _, outcome := range []agentclient.Outcome{agentclient.NotFound, agentclient.NotExecutable} {
		err := failure(agentclient.ExecResult{Outcome: outcome, ExitCode: 127, Status: `start "secret": no such file`})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("outcome %v: %v", outcome, err)
		}
	}
	if err := failure(agentclient.ExecResult{Outcome: agentclient.Exited}); err != nil {
		t.Error(err)
	}
}
