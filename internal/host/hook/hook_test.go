package hook

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// Clients that are not allowed to see the arguments of a hook can see the event of its failure. The
// name of the program is one of the arguments, so the event must not contain it.
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
