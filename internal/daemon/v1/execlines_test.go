package v1_test

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// The lines of JSON contain the process id, and the output as text where possible.
func TestExecLines(t *testing.T) {
	cl, url, id := forked(t)
	req := requestOf(t, url+"/v1/sandboxes/"+id+"/exec")
	req.Method, req.Body = "POST",
		io.NopCloser(strings.NewReader(`{"args":["sh","-c","echo '<ü>'; read x; printf '\\377' >&2; exit 3"],"open_stdin":true}`))
	req.Header.Set("Accept", "application/x-ndjson")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var started, line string
	var pid uint64
	if _, err = fmt.Fscanln(resp.Body, &started); err == nil {
		pid, err = strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(started, `{"started":{"pid":`), "}}"), 10, 32)
	}
	if err != nil {
		t.Fatalf("%s: %v", started, err)
	}
	if _, err := fmt.Fscanln(resp.Body, &line); err != nil || line != `{"stdout":"<ü>\n"}` {
		t.Fatalf("%s, %v", line, err)
	}
	if err := cl.SendStdin(t.Context(), id, uint32(pid), strings.NewReader("x\n"), false); err != nil {
		t.Error(err)
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasPrefix(string(rest),
		`{"stderr_base64":"/w=="}`+"\n"+`{"end":{"exit_code":3,"outcome":"exited"`) {
		t.Errorf("%s, %v", rest, err)
	}
}
