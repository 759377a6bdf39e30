package v1_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
)

// A body or an answer is refused if all requests together would hold too much memory. Streams are
// never refused for that reason. At the end, all memory is released.
func TestLargeRequestsShareTheMemory(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Memory: 1 << 20}})
	id := fork(t, r, 1)[0].ID
	at := r.URL + "/v1/sandboxes/" + id
	large := base64.StdEncoding.EncodeToString(make([]byte, 1<<20))
	for round := range 2 {
		for path, body := range map[string]string{
			"/exec": `{"args":["head","-c","1000000","/dev/zero"]}`,
			"/eval": `{"code":"print('x' * 1000000)"}`,
		} {
			if status, answer := post(t, at+path, body); status != http.StatusServiceUnavailable || answer["code"] != "busy" {
				t.Errorf("round %d: %s: %d %.300v", round, path, status, answer)
			}
		}
		if status, answer := post(t, at+"/exec",
			`{"args":["true"],"stdin":"`+large+`"}`); status != http.StatusServiceUnavailable {
			t.Errorf("round %d: a large body: %d %.300v", round, status, answer)
		}
		if status, answer := post(t, at+"/exec", `{"args":["head","-c","50000","/dev/zero"]}`); status != http.StatusOK ||
			answer["exit_code"] != 0.0 {
			t.Errorf("round %d: what fits: %d %.300v", round, status, answer)
		}
		if e, err := r.Exec(t.Context(), id, client.ExecRequest{Args: []string{"head", "-c", "1000000",
			"/dev/zero"}}); err != nil || len(e.Stdout) != 1000000 {
			t.Errorf("round %d: a stream: %d bytes, %v", round, len(e.Stdout), err)
		}
	}
}

// Bodies count by their decoded size: an empty string in a list has three bytes of JSON and takes
// sixteen in memory.
func TestDecodedBodiesAreCounted(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Memory: 1 << 20}})
	id := fork(t, r, 1)[0].ID
	body := `{"args":["true"` + strings.Repeat(`,""`, 50_000) + `]}`
	message := `{"start":` + body + `}`
	if status, answer := post(t, r.URL+"/v1/sandboxes/"+id+"/exec", body); status != http.StatusServiceUnavailable ||
		answer["code"] != "busy" {
		t.Errorf("many arguments: %d %.300v", status, answer)
	}
	body = `{"args":["true","` + strings.Repeat("x", 100_000) + `"]}`
	if status, answer := post(t, r.URL+"/v1/sandboxes/"+id+"/exec", body); status != http.StatusOK {
		t.Errorf("a long argument of as many bytes: %d %.300v", status, answer)
	}
	if got := ask1(t, r.URL, id, message); !strings.Contains(got, `"status":503`) {
		t.Errorf("many arguments, in the first message of a WebSocket: %.300s", got)
	}
}

// Output of code does not become six times as long in JSON.
func TestEvalStaysSmallInJSON(t *testing.T) {
	_, url, id := forked(t)
	const n = 300_000
	for _, code := range []string{`print(chr(1) * %d)`, `import sys; sys.stderr.write(chr(0) * %d)`,
		`raise Exception(chr(2) * %d)`} {
		status, body := raw(t, url+"/v1/sandboxes/"+id+"/eval", fmt.Sprintf(`{"code":%q}`, fmt.Sprintf(code, n)))
		if status != http.StatusOK || len(body) > 4*n {
			t.Errorf("%s: %d, %d bytes", code, status, len(body))
		}
	}
	if _, answer := post(t, url+"/v1/sandboxes/"+id+"/eval",
		`{"code":"print(chr(1) + 'x')"}`); answer["stdout"] != "\x01x\n" {
		t.Errorf("a small one: %v", answer)
	}
}

func raw(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+apirig.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if err := resp.Write(&b); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}
