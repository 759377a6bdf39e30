package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func TestHoldFlags(t *testing.T) {
	var n networkFlags
	cmd := &cobra.Command{}
	n.registerNew(cmd)
	flags := []string{"--hold-effects", "a.b", "--hold-effects", "*.c.d", "--hold-answer", "wait"}
	if err := cmd.ParseFlags(flags); err != nil {
		t.Fatal(err)
	}
	var req client.ForkRequest
	if err := n.giveTo(&req); err != nil || req.HoldEffects == nil || req.HoldEffects.Answer != "wait" ||
		strings.Join(req.HoldEffects.Hosts, " ") != "a.b *.c.d" || req.Network != nil {
		t.Errorf("%+v, %v", req, err)
	}
	n.hold.Hosts = nil
	if err := n.giveTo(&req); err == nil || !strings.Contains(err.Error(), "--hold-effects") {
		t.Errorf("an answer without a host: %v", err)
	}
}

// A guest chooses the texts of a request. Control characters in them do not reach the terminal.
func TestPrintEffects(t *testing.T) {
	cmd, out, notes := &cobra.Command{}, &bytes.Buffer{}, &bytes.Buffer{}
	cmd.SetOut(out)
	cmd.SetErr(notes)
	err := printEffects(cmd, client.Effects{Hold: &client.Hold{Hosts: []string{"a.b"}, Answer: "record"}, Missed: 3,
		List: []client.Effect{
			{ID: 1, Method: "PO\x1bST", URL: "https://a.b/\x1b[2J", Body: "x\n\x1b]0;y", Outcome: "recorded"},
			{ID: 2, Method: "PUT", URL: "https://a.b/", BodyBase64: "AA==", Outcome: "recorded"}}})
	if err != nil || strings.Contains(out.String(), "\x1b") || strings.Count(out.String(), "\n") != 3 ||
		!strings.Contains(out.String(), "(binary)") || !strings.Contains(notes.String(), "3 requests were refused") ||
		!strings.Contains(notes.String(), "held: a.b (record)") {
		t.Errorf("%v\n%q\n%q", err, out, notes)
	}
}
